# Headwater's own series: docs/operations.md explains each.

locals {
  rules = {
    groups = [{
      name = "headwater"
      rules = [
        for rule in [
          {
            alert = "TtftAboveTarget"
            expr  = "histogram_quantile(0.99, sum by (model_name, le) (rate(headwater:time_to_first_token_seconds_bucket[5m]))) > ${var.ttft_target_s}"
            hold  = "5m"
            says  = "First tokens come late: the fleet is too small, or prompts are longer than planned."
          },
          {
            alert = "TpotAboveTarget"
            expr  = "histogram_quantile(0.99, sum by (model_name, le) (rate(headwater:request_time_per_output_token_seconds_bucket[5m]))) > ${var.tpot_target_s}"
            hold  = "5m"
            says  = "Tokens come slowly: lower tpot_target_s of the engine, or add replicas."
          },
          {
            alert = "ReplicaSilent"
            expr  = "headwater:scrape_up == 0"
            hold  = "2m"
            says  = "A replica doesn't answer scrapes."
          },
          {
            alert = "AutoscalerBlind"
            expr  = "headwater:autoscaler_demand_known == 0"
            hold  = "2m"
            says  = "Sizes hold, since the load isn't known."
          },
          {
            alert = "NodesFail"
            expr  = "headwater:autoscaler_failed_nodes > 0"
            hold  = "5m"
            says  = "Nodes don't answer, or can't hold the weights they shall."
          },
          {
            alert = "QueueOld"
            expr  = "max by (model_name) (headwater:queue_oldest_age_seconds) > 10"
            hold  = "1m"
            says  = "A request waits for more than ten seconds."
          },
        ] : { alert = rule.alert, expr = rule.expr, "for" = rule.hold, annotations = { summary = rule.says } }
      ]
    }]
  }
}

resource "aws_prometheus_workspace" "this" {
  count = var.prometheus ? 1 : 0

  alias       = var.name
  kms_key_arn = var.kms_key_arn
  tags        = local.tags
}

resource "aws_prometheus_rule_group_namespace" "this" {
  count = var.prometheus ? 1 : 0

  name         = "headwater"
  workspace_id = aws_prometheus_workspace.this[0].id
  data         = yamlencode(local.rules)
}
