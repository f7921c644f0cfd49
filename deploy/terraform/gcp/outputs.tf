output "ssh" {
  description = "Connect, with Grafana on http://localhost:3000 of your own machine"
  value       = "gcloud compute ssh ${google_compute_instance.gpu.name} --zone ${var.zone} -- -L 3000:127.0.0.1:3000 -L 9090:127.0.0.1:9090"
}

output "address" {
  value = google_compute_instance.gpu.network_interface[0].access_config[0].nat_ip
}
