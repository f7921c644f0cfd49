# One GPU VM on Google Cloud with trainvitals and the whole stack on it, reachable from one address only.
#   terraform init
#   terraform apply -var project=MY-PROJECT -var operator_cidr=203.0.113.7/32 -var TRAINVITALS_PACKAGE=../../../dist/trainvitals-0.1.0-py3-none-any.whl

terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.0, < 8.0"
    }
  }
}

provider "google" {
  project = var.project
  region  = var.region
  zone    = var.zone
}

locals {
  # The GPUs of the G2, A2 and A3 machines come with the machine type.
  machines = {
    l4   = "g2-standard-8"
    a100 = "a2-highgpu-1g"
    h100 = "a3-highgpu-1g"
  }
  # A file on this machine reaches the VM through a bucket; anything else is for pip to find.
  is_file = fileexists(var.TRAINVITALS_PACKAGE)
  package = local.is_file ? "gs://${google_storage_bucket.package[0].name}/${basename(var.TRAINVITALS_PACKAGE)}" : var.TRAINVITALS_PACKAGE
}

data "google_compute_image" "deep_learning" {
  family  = var.image_family
  project = "deeplearning-platform-release"
}

resource "google_compute_network" "trainvitals" {
  name                    = "${var.name}-network"
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "trainvitals" {
  name          = "${var.name}-subnet"
  network       = google_compute_network.trainvitals.id
  region        = var.region
  ip_cidr_range = "10.90.0.0/24"
}

# Nothing comes in but SSH from the operator. Grafana and Prometheus listen on the VM's loopback: use an SSH tunnel.
resource "google_compute_firewall" "operator" {
  name          = "${var.name}-operator"
  network       = google_compute_network.trainvitals.id
  direction     = "INGRESS"
  source_ranges = [var.operator_cidr]
  target_tags   = [var.name]

  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

resource "google_service_account" "vm" {
  account_id   = "${var.name}-vm"
  display_name = "trainvitals VM, may read its package and nothing else"
}

resource "google_storage_bucket" "package" {
  count                       = local.is_file ? 1 : 0
  name                        = "${var.project}-${var.name}-package"
  location                    = var.region
  force_destroy               = true
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
}

resource "google_storage_bucket_object" "package" {
  count  = local.is_file ? 1 : 0
  bucket = google_storage_bucket.package[0].name
  name   = basename(var.TRAINVITALS_PACKAGE)
  source = var.TRAINVITALS_PACKAGE
}

resource "google_storage_bucket_iam_member" "vm" {
  count  = local.is_file ? 1 : 0
  bucket = google_storage_bucket.package[0].name
  role   = "roles/storage.objectViewer"
  member = google_service_account.vm.member
}

resource "google_compute_instance" "gpu" {
  name         = var.name
  machine_type = local.machines[var.gpu]
  tags         = [var.name]

  boot_disk {
    initialize_params {
      image = data.google_compute_image.deep_learning.self_link
      size  = var.disk_gb
      type  = "pd-balanced"
    }
  }

  network_interface {
    subnetwork = google_compute_subnetwork.trainvitals.id
    access_config {}
  }

  scheduling {
    # GPU machines cannot be moved while they run.
    on_host_maintenance = "TERMINATE"
    automatic_restart   = !var.spot
    preemptible         = var.spot
    provisioning_model  = var.spot ? "SPOT" : "STANDARD"
  }

  shielded_instance_config {
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  service_account {
    email  = google_service_account.vm.email
    scopes = ["logging-write", "monitoring-write", "storage-ro"]
  }

  metadata = {
    install-nvidia-driver  = "True"
    block-project-ssh-keys = "false"
    enable-oslogin         = "TRUE"
  }

  metadata_startup_script = templatefile("${path.module}/startup.sh.tftpl", {
    package = local.package
    stack   = var.stack
    install = file("${path.module}/../../systemd/install.sh")
  })

  # The script of the first start reads them.
  depends_on = [google_storage_bucket_object.package, google_storage_bucket_iam_member.vm]
}
