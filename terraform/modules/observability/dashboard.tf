locals {
  graphs = [
    { title = "Requests a minute", stat = "Sum", metrics = [["AWS/ApplicationELB", "RequestCount", "LoadBalancer", var.alb_arn_suffix]] },
    {
      title = "Errors a minute"
      stat  = "Sum"
      metrics = [
        for code in ["HTTPCode_Target_4XX_Count", "HTTPCode_Target_5XX_Count", "HTTPCode_ELB_5XX_Count"] :
        ["AWS/ApplicationELB", code, "LoadBalancer", var.alb_arn_suffix]
      ]
    },
    {
      title   = "Time until an answer's headers, s"
      stat    = "p99"
      metrics = [["AWS/ApplicationELB", "TargetResponseTime", "LoadBalancer", var.alb_arn_suffix]]
    },
    {
      title = "Heads that answer"
      stat  = "Maximum"
      metrics = [
        ["AWS/ApplicationELB", "HealthyHostCount", "TargetGroup", var.target_group_arn_suffix, "LoadBalancer", var.alb_arn_suffix],
      ]
    },
  ]
}

resource "aws_cloudwatch_dashboard" "this" {
  dashboard_name = var.name

  dashboard_body = jsonencode({
    widgets = concat(
      [
        for position, graph in local.graphs : {
          type   = "metric"
          x      = 12 * (position % 2)
          y      = 6 * floor(position / 2)
          width  = 12
          height = 6
          properties = {
            title   = graph.title
            region  = var.region
            stat    = graph.stat
            period  = 60
            view    = "timeSeries"
            metrics = graph.metrics
          }
        }
      ],
      [
        {
          type   = "log"
          x      = 0
          y      = 6 * ceil(length(local.graphs) / 2)
          width  = 24
          height = 6
          properties = {
            title  = "Nodes: errors and warnings"
            region = var.region
            view   = "table"
            query  = "SOURCE '/headwater/${var.name}' | fields @timestamp, @logStream, @message | filter @message like /(?i)error|warning|given up/ | sort @timestamp desc | limit 50"
          }
        },
      ],
    )
  })
}
