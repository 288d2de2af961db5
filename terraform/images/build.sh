#!/usr/bin/env bash
# Makes an image of a node (AMI), so that nodes start without installing:
#
#   build.sh --region R --subnet SUBNET --security-group GROUP --profile PROFILE \
#            --bucket CONFIG_BUCKET --wheel-key KEY [--extras cuda] [--kms-key ARN] [--type m7i.2xlarge]
#
# Installs provision.sh's way on an instance of AWS's Deep Learning Base AMI, stops it, takes its
# image, and ends it whatever happens. Prints the image's id for `ami_id`; all else goes to stderr.
# PROFILE is the name of the workers' instance profile: it may read the config bucket, in which
# `cluster/provision.sh` lies since the first apply, and be reached by SSM.
set -euo pipefail

readonly BASE=/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id
readonly ONLINE_S=600 INSTALL_S=3600

region='' subnet='' security_group='' profile='' bucket='' wheel_key='' extras=cuda kms_key='' type=m7i.2xlarge
instance='' folder=''

fail() {
  echo "build.sh: $*" >&2
  exit 1
}

read_arguments() {
  while (($#)); do
    (($# >= 2)) || fail "$1 takes a value"
    case $1 in
      --region) region=$2 ;;
      --subnet) subnet=$2 ;;
      --security-group) security_group=$2 ;;
      --profile) profile=$2 ;;
      --bucket) bucket=$2 ;;
      --wheel-key) wheel_key=$2 ;;
      --extras) extras=$2 ;;
      --kms-key) kms_key=$2 ;;
      --type) type=$2 ;;
      *) fail "unknown argument $1: see the head of this file" ;;
    esac
    shift 2
  done
  local name
  for name in region subnet security_group profile bucket wheel_key; do
    [[ -n ${!name} ]] || fail "--${name//_/-} is missing: see the head of this file"
  done
  # They go into a command that runs as root.
  [[ $bucket$wheel_key$extras$region =~ ^[A-Za-z0-9._+/,-]+$ ]] || fail 'odd characters in an argument'
}

ec2() {
  aws ec2 --region "$region" "$@"
}

clean_up() {
  if [[ -n $instance ]]; then
    ec2 terminate-instances --instance-ids "$instance" --query 'TerminatingInstances[0].CurrentState.Name' \
      --output text >&2 || echo "build.sh: end $instance yourself: it costs money" >&2
  fi
  [[ -z $folder ]] || rm -rf "$folder"
}

start_instance() {
  local image disk
  image=$(aws ssm get-parameter --region "$region" --name "$BASE" --query Parameter.Value --output text)
  disk='{"VolumeType":"gp3","VolumeSize":100,"Throughput":500,"Encrypted":true,"DeleteOnTermination":true'
  disk+=${kms_key:+",\"KmsKeyId\":\"$kms_key\""}'}'
  instance=$(ec2 run-instances --image-id "$image" --instance-type "$type" --subnet-id "$subnet" \
    --security-group-ids "$security_group" --iam-instance-profile "Name=$profile" \
    --metadata-options 'HttpTokens=required,HttpPutResponseHopLimit=1' \
    --block-device-mappings "[{\"DeviceName\":\"/dev/sda1\",\"Ebs\":$disk}]" \
    --tag-specifications 'ResourceType=instance,Tags=[{Key=Name,Value=headwater-image}]' \
    'ResourceType=volume,Tags=[{Key=Name,Value=headwater-image}]' \
    --query 'Instances[0].InstanceId' --output text)
  echo "$instance starts from $image" >&2
}

wait_online() {
  local end_s=$((SECONDS + ONLINE_S)) ping=''
  until [[ $ping == Online ]]; do
    ((SECONDS < end_s)) || fail "$instance is not seen by SSM: does its subnet reach the SSM endpoints?"
    sleep 10
    ping=$(aws ssm describe-instance-information --region "$region" \
      --filters "Key=InstanceIds,Values=$instance" \
      --query 'InstanceInformationList[0].PingStatus' --output text)
  done
}

install_on_instance() {
  local command status=Pending end_s=$((SECONDS + INSTALL_S + 120))
  cat >"$folder/command.json" <<JSON
{
  "executionTimeout": ["$INSTALL_S"],
  "commands": [
    "set -eu",
    "export AWS_REGION=$region AWS_DEFAULT_REGION=$region HOME=/root",
    "cloud-init status --wait || true",
    "mkdir -p /opt/headwater/download && cd /opt/headwater/download",
    "aws s3 cp --only-show-errors s3://$bucket/cluster/provision.sh .",
    "aws s3 cp --only-show-errors s3://$bucket/$wheel_key .",
    "aws s3 cp --only-show-errors s3://$bucket/${wheel_key%/*}/constraints.txt .",
    "bash provision.sh ./${wheel_key##*/} constraints.txt '$extras'",
    "echo '$wheel_key' > /opt/headwater/wheel",
    "rm -rf /opt/headwater/download /var/log/headwater/*",
    "cloud-init clean --logs --machine-id || cloud-init clean --logs",
    "sync"
  ]
}
JSON
  command=$(aws ssm send-command --region "$region" --instance-ids "$instance" \
    --document-name AWS-RunShellScript --parameters "file://$folder/command.json" \
    --query Command.CommandId --output text)
  while [[ $status == Pending || $status == InProgress || $status == Delayed ]]; do
    ((SECONDS < end_s)) || fail "the installation took more than $INSTALL_S s"
    sleep 15
    status=$(aws ssm get-command-invocation --region "$region" --command-id "$command" \
      --instance-id "$instance" --query Status --output text)
  done
  if [[ $status != Success ]]; then
    aws ssm get-command-invocation --region "$region" --command-id "$command" --instance-id "$instance" \
      --query '[StandardOutputContent, StandardErrorContent]' --output text >&2
    fail "the installation ended with $status"
  fi
}

take_image() {
  local image name
  name="headwater-$(date -u +%Y%m%d-%H%M%S)"
  ec2 stop-instances --instance-ids "$instance" --query 'StoppingInstances[0].CurrentState.Name' --output text >&2
  ec2 wait instance-stopped --instance-ids "$instance"
  image=$(ec2 create-image --instance-id "$instance" --name "$name" --description "Headwater node: $wheel_key" \
    --tag-specifications "ResourceType=image,Tags=[{Key=Name,Value=$name}]" \
    "ResourceType=snapshot,Tags=[{Key=Name,Value=$name}]" --query ImageId --output text)
  ec2 wait image-available --image-ids "$image" || ec2 wait image-available --image-ids "$image"
  echo "$image"
}

main() {
  read_arguments "$@"
  folder=$(mktemp -d)
  trap clean_up EXIT
  start_instance
  wait_online
  install_on_instance
  take_image
}

main "$@"
