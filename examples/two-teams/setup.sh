#!/usr/bin/env bash
# Makes two teams from nothing, as the server's operator: limits, prices, budgets,
# keys that may not do everything, and webhooks. It prints what each team needs.
#
#   examples/two-teams/setup.sh URL
#
# URL is where both teams' events are sent, such as that of receiver.py.
set -euo pipefail

url=${1:?usage: $0 URL, where webhooks are sent}
cay=${CAY:-cay}

# Prices of units. Costs are counted with the use, so prices come first.
"$cay" usage prices --currency EUR vcpu_seconds=0.000014 memory_gib_seconds=0.0000045 >&2

# team NAME SANDBOXES EUROS
team() {
  local name=$1 sandboxes=$2 euros=$3 owner developer hook
  owner=$("$cay" team create "$name" --key owner --json | field key)
  "$cay" team limits set "$name" sandboxes="$sandboxes" memoryMB=16384 builds=2 >&2

  # All of the team's sandboxes cost so much a month at most: then new ones are
  # refused, and those that run are paused with their memory.
  "$cay" budget add --team "$name" --name "a month" --meter money --limit "$euros" --period month >&2

  # Developers' programs get a key that ends, makes sandboxes with a label and
  # sees no bill; the label is metered.
  "$cay" usage labels --team "$name" app >&2
  developer=$("$cay" key create agents --team "$name" --scope developer --expires 90d --metadata app=agents --json | field key)
  "$cay" budget add --team "$name" --name "agents, a day" --meter creates --limit 1000 --period day --action refuse --metadata app=agents >&2

  hook=$(E2B_API_KEY=$owner "$cay" webhook create "$url" --name bills --json \
    -e sandbox.lifecycle.created -e sandbox.lifecycle.killed -e budget.threshold | field signatureSecret)
  printf 'team=%s owner=%s agents=%s webhook=%s\n' "$name" "$owner" "$developer" "$hook"
}

# field NAME prints a field of the JSON object on standard input.
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

team "${FIRST:-acme}" 20 50
team "${SECOND:-globex}" 5 10
