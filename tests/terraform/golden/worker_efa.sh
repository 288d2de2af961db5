#!/bin/bash
# Makes this instance a node of the Ray cluster river. Runs once, as root, at the first boot.
set -euo pipefail
set -o errtrace # functions end the script too

readonly CLUSTER='river' NODE_TYPE='h100' CONFIG_BUCKET='river-config'
readonly TOKEN_SECRET='arn:aws:secretsmanager:us-east-1:123456789012:secret:river-ray-token-AbCdEf' WHEEL_KEY='wheels/1f2e3d/headwater-0.1.0-py3-none-any.whl'
export AWS_REGION='us-east-1' AWS_DEFAULT_REGION='us-east-1' HOME=/root DEBIAN_FRONTEND=noninteractive

install -d -m 0755 /var/log/headwater /etc/headwater /opt/headwater/bin
exec > >(tee -a /var/log/headwater/start.log) 2>&1

# An instance that can't become a node ends, which its template makes a termination.
give_up() {
  trap - ERR
  echo "start failed at line $1: this instance ends" >&2
  start_log_agent || true
  sleep 60 # until the log is sent
  shutdown -h now
  exit 1
}
trap 'give_up "$LINENO"' ERR
# Also when a step hangs.
systemd-run --quiet --unit=headwater-start-deadline --on-active=45min systemctl poweroff

# Runs a command until it succeeds, for about $1 seconds.
retry() {
  local end_s=$((SECONDS + $1)) pause_s=2
  shift
  until "$@"; do
    if ((SECONDS >= end_s)); then
      echo "given up: $*" >&2
      return 1
    fi
    sleep "$pause_s"
    pause_s=$((pause_s < 16 ? pause_s * 2 : 30))
  done
}

imds() {
  local base=http://169.254.169.254/latest token
  token=$(curl -fsS -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$base/api/token") || return 1
  curl -fsS -m 5 -H "X-aws-ec2-metadata-token: $token" "$base/meta-data/$1"
}

from_config_bucket() {
  timeout 300 aws s3 cp --only-show-errors "s3://$CONFIG_BUCKET/$1" "$2"
}

# An image made by terraform/images/build.sh has this wheel already.
install_headwater() {
  if [[ -f /opt/headwater/wheel && "$(</opt/headwater/wheel)" == "$WHEEL_KEY" ]]; then
    return 0
  fi
  local folder=/opt/headwater/download
  install -d "$folder"
  retry 300 from_config_bucket cluster/provision.sh "$folder/provision.sh"
  retry 300 from_config_bucket "$WHEEL_KEY" "$folder/headwater-0.1.0-py3-none-any.whl"
  retry 300 from_config_bucket 'wheels/1f2e3d/constraints.txt' "$folder/constraints.txt"
  retry 600 timeout 1500 bash "$folder/provision.sh" "$folder/headwater-0.1.0-py3-none-any.whl" "$folder/constraints.txt" 'cuda'
  echo "$WHEEL_KEY" >/opt/headwater/wheel
}

# Instance storage as one file system; without any, the folder lies on the root volume.
mount_nvme() {
  local disks device
  install -d -m 0755 /mnt/nvme
  systemctl mask --now dlami-nvme.service || true # AWS's images take the disks for themselves
  if mountpoint -q /opt/dlami/nvme; then
    mount --bind /opt/dlami/nvme /mnt/nvme
    return 0
  fi
  mapfile -t disks < <(lsblk -dnpo NAME,MODEL | awk '/Instance Storage/ { print $1 }')
  case ${#disks[@]} in
    0) return 0 ;;
    1) device=${disks[0]} ;;
    *)
      device=/dev/md0
      mdadm --create "$device" --run --force --level=0 --raid-devices="${#disks[@]}" "${disks[@]}"
      ;;
  esac
  mkfs.xfs -q -f -K -L headwater "$device"
  echo 'LABEL=headwater /mnt/nvme xfs noatime,nofail 0 0' >>/etc/fstab
  mount /mnt/nvme
}

write_token() {
  install -m 0600 -o headwater -g headwater /dev/null /etc/headwater/ray_token
  cat >/etc/headwater/ray_token
}

fetch_token() {
  local token
  token=$(aws secretsmanager get-secret-value --secret-id "$TOKEN_SECRET" --query SecretString --output text) || return 1
  [[ -n "$token" ]] || return 1
  printf '%s' "$token" | write_token
}

# Not required: a node without its logs elsewhere still answers.
start_log_agent() {
  local folder=/opt/aws/amazon-cloudwatch-agent
  cat >/etc/headwater/logs.json <<'LOGS'
{
  "logs": {
    "logs_collected": {
      "files": {
        "collect_list": [
          {
            "file_path": "/var/log/headwater/*.log",
            "log_group_name": "/headwater/river",
            "log_stream_name": "h100/{instance_id}/headwater"
          },
          {
            "file_path": "/tmp/ray/session_latest/logs/**.{log,out,err}",
            "log_group_name": "/headwater/river",
            "log_stream_name": "h100/{instance_id}/ray"
          }
        ]
      }
    }
  }
}
LOGS
  "$folder/bin/amazon-cloudwatch-agent-ctl" -a fetch-config -m ec2 -s -c file:/etc/headwater/logs.json >/dev/null
}

INSTANCE_ID=$(retry 60 imds instance-id)
install_headwater
mount_nvme
install -d -m 0755 -o headwater -g headwater /mnt/nvme/headwater
cat >/etc/headwater/node.env <<ENV
AWS_REGION=$AWS_REGION
HEADWATER_CLUSTER=$CLUSTER
HEADWATER_HOME=/mnt/nvme/headwater
RAY_AUTH_MODE=token
RAY_AUTH_TOKEN_PATH=/etc/headwater/ray_token
RAY_CLOUD_INSTANCE_ID=$INSTANCE_ID
RAY_NODE_TYPE_NAME=$NODE_TYPE
RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=deployments.edge:middlewares
RAY_enable_autoscaler_v2=1
ENV
echo FI_PROVIDER=efa >>/etc/headwater/node.env
retry 900 fetch_token # a new cluster's head makes it

cat >/opt/headwater/bin/wait-for-head <<'SCRIPT'
#!/bin/bash
# Without a head this node would idle for money: it ends after 15 minutes.
end_s=$((SECONDS + 900))
until timeout 5 bash -c '</dev/tcp/head.river.internal/6379' 2>/dev/null; do
  if ((SECONDS >= end_s)); then
    echo 'no head at head.river.internal:6379 for 15 minutes: this instance ends'
    systemctl poweroff
    exit 1
  fi
  sleep 5
done
SCRIPT
cat >/opt/headwater/bin/worker <<'SCRIPT'
#!/bin/bash
# Ends when the raylet has: `ray start --block` goes on when that was in order, as after a drain.
set -euo pipefail
/opt/headwater/venv/bin/ray start --block --disable-usage-stats --address='head.river.internal:6379' \
  --num-cpus=160 --num-gpus=8 --labels='headwater.pool=h100' &
ray=$!
joined=no missing=0
while kill -0 "$ray" 2>/dev/null; do
  if pgrep -u headwater -x raylet >/dev/null; then
    joined=yes missing=0
  elif [[ "$joined" == yes ]] && ((++missing >= 6)); then
    echo 'the raylet has ended in order: so does this node'
    exit 0
  fi
  sleep 5
done
wait "$ray"
SCRIPT

cat >/etc/systemd/system/headwater-ray.service <<'UNIT'
[Unit]
Description=Worker of a Ray cluster
Wants=network-online.target
After=network-online.target
# Drained, or stopped by hand: the instance ends, as its template makes a shutdown a termination.
SuccessAction=poweroff
# Nor does it try for ever.
StartLimitIntervalSec=3600
StartLimitBurst=20
StartLimitAction=poweroff

[Service]
User=headwater
EnvironmentFile=/etc/headwater/node.env
ExecStartPre=+/opt/headwater/bin/wait-for-head
ExecStart=/opt/headwater/bin/worker
Restart=on-failure
RestartSec=5
TimeoutStartSec=1000
TimeoutStopSec=60
LimitNOFILE=1048576
LimitMEMLOCK=infinity
TasksMax=infinity
StandardOutput=append:/var/log/headwater/ray.log
StandardError=inherit

[Install]
WantedBy=multi-user.target
UNIT

cat >/opt/headwater/bin/prefetch <<'SCRIPT'
#!/bin/bash
# Brings the weights of what is deployed onto this node, before a replica asks for them.
set -euo pipefail
key=$(aws ssm get-parameter --name '/headwater/river/serve-config' --query Parameter.Value --output text)
aws s3 cp --only-show-errors "s3://river-config/$key" "$HEADWATER_HOME/serve.yaml"
exec /opt/headwater/venv/bin/headwater models pull "$HEADWATER_HOME/serve.yaml"
SCRIPT
chmod 0755 /opt/headwater/bin/*

cat >/etc/systemd/system/headwater-agent.service <<'UNIT'
[Unit]
Description=Drains this node when its instance is about to go
Wants=network-online.target
After=network-online.target

[Service]
User=headwater
EnvironmentFile=/etc/headwater/node.env
ExecStart=/opt/headwater/venv/bin/python -m deployments.aws.node_agent
Restart=always
RestartSec=5
StandardOutput=append:/var/log/headwater/agent.log
StandardError=inherit

[Install]
WantedBy=multi-user.target
UNIT

# In the background, and never the node's failure: a replica brings what it misses.
cat >/etc/systemd/system/headwater-prefetch.service <<'UNIT'
[Unit]
Description=Brings the weights of what is deployed
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
User=headwater
EnvironmentFile=/etc/headwater/node.env
ExecStart=/opt/headwater/bin/prefetch
RuntimeMaxSec=3600
StandardOutput=append:/var/log/headwater/prefetch.log
StandardError=inherit

[Install]
WantedBy=multi-user.target
UNIT

cat >/etc/logrotate.d/headwater <<'ROTATE'
/var/log/headwater/*.log {
  size 100M
  rotate 2
  copytruncate
  missingok
}
ROTATE

start_log_agent || echo 'the logs stay on this node: their agent did not start' >&2
systemctl daemon-reload
systemctl enable --now --no-block headwater-ray.service headwater-agent.service headwater-prefetch.service
systemctl stop headwater-start-deadline.timer
echo 'this instance is set up as a worker of pool h100'
