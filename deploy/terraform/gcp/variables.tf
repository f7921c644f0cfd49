variable "project" {
  description = "Google Cloud project"
  type        = string
}

variable "operator_cidr" {
  description = "The only address that may connect, such as 203.0.113.7/32"
  type        = string

  validation {
    condition     = can(cidrnetmask(var.operator_cidr)) && !endswith(var.operator_cidr, "/0")
    error_message = "Give one address or a small network, never the whole internet."
  }
}

variable "gpu" {
  description = "l4, a100 or h100"
  type        = string
  default     = "l4"

  validation {
    condition     = contains(["l4", "a100", "h100"], var.gpu)
    error_message = "One of l4, a100, h100."
  }
}

variable "region" {
  type    = string
  default = "us-central1"
}

variable "zone" {
  type    = string
  default = "us-central1-a"
}

variable "name" {
  type    = string
  default = "trainvitals"
}

variable "image_family" {
  description = "Family of a deep learning image with the NVIDIA driver: Ubuntu 24.04 with Python 3.12"
  type        = string
  default     = "common-cu129-ubuntu-2404-nvidia-580"
}

variable "disk_gb" {
  type    = number
  default = 200
}

variable "spot" {
  description = "Cheaper, and may be taken away"
  type        = bool
  default     = false
}

variable "TRAINVITALS_PACKAGE" {
  description = "What is installed: a wheel or sdist on this machine, its URL, or a name in a package index such as trainvitals==0.1.0"
  type        = string
}

variable "stack" {
  description = "Also Prometheus, Grafana and Alertmanager, in containers; without them the agent is a service of the VM"
  type        = bool
  default     = true
}
