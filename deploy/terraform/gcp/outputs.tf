output "ssh" {
  description = "Connect, with Grafana on http://localhost:3000 (without the stack: the agent's page on port 9101) of your own machine"
  value = join(" ", [
    "gcloud compute ssh ${google_compute_instance.gpu.name} --zone ${var.zone} --",
    var.stack ? "-L 3000:127.0.0.1:3000 -L 9090:127.0.0.1:9090" : "-L 9101:127.0.0.1:9101",
  ])
}

output "address" {
  value = google_compute_instance.gpu.network_interface[0].access_config[0].nat_ip
}
