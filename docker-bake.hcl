# The images of a release: `make images`, or with `docker buildx bake` one of them.

variable "REGISTRY" {
  default = "registry.example.com"
}

# With or without the `v` of a tag.
variable "VERSION" {}

variable "REVISION" {
  default = ""
}

group "default" {
  targets = ["gateway", "worker", "worker-cuda", "lease-holder"]
}

target "image" {
  args = {
    VERSION  = trimprefix(VERSION, "v")
    REVISION = REVISION
  }
  attest = ["type=provenance,mode=max", "type=sbom"]
}

target "gateway" {
  inherits   = ["image"]
  dockerfile = "gateway/Dockerfile"
  tags       = ["${REGISTRY}/fairlane-gateway:${trimprefix(VERSION, "v")}"]
}

target "worker" {
  inherits   = ["image"]
  dockerfile = "worker/Dockerfile"
  tags       = ["${REGISTRY}/fairlane-worker:${trimprefix(VERSION, "v")}"]
}

target "worker-cuda" {
  inherits   = ["image"]
  dockerfile = "worker/Dockerfile"
  args = {
    DEVICE = "cuda"
  }
  tags = ["${REGISTRY}/fairlane-worker:${trimprefix(VERSION, "v")}-cuda"]
}

target "lease-holder" {
  inherits   = ["image"]
  dockerfile = "worker/remote/Dockerfile"
  tags       = ["${REGISTRY}/fairlane-lease-holder:${trimprefix(VERSION, "v")}"]
}
