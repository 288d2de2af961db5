output "rayservice" {
  description = "Manifest of the RayService, for kubectl apply."
  value       = yamlencode(local.rayservice)
}

output "helm_values" {
  description = "Values for KubeRay's operator chart, so that it watches this namespace alone."
  value       = yamlencode(local.helm_values)
}
