package rest

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/api/rest/e2b"
	"github.com/cay-run/cay/internal/control/audit"
)

// actions are the operations of both contracts that change something, with the
// action that the audit log has of each: the type of its event, where it gives
// one. One that the transaction of the change did not record is recorded when
// it has been answered.
var actions = map[string]string{
	"createSandbox":          string(cay.SandboxCreated),
	"createSandboxV2":        string(cay.SandboxCreated),
	"killSandbox":            string(cay.SandboxKilled),
	"updateNetwork":          string(cay.SandboxNetworkChanged),
	"allowEgress":            string(cay.SandboxNetworkChanged),
	"pauseSandbox":           string(cay.SandboxPaused),
	"resumeSandbox":          string(cay.SandboxResumed),
	"forkSandbox":            string(cay.SandboxForked),
	"createSnapshot":         string(cay.SandboxCheckpointed),
	"setSandboxTimeout":      string(cay.SandboxTimeoutChanged),
	"createSecret":           "secret.created",
	"updateSecret":           "secret.updated",
	"deleteSecret":           "secret.removed",
	"createKey":              string(cay.KeyCreated),
	"updateKey":              string(cay.KeyChanged),
	"deleteKey":              string(cay.KeyRemoved),
	"createAPIKey":           string(cay.KeyCreated),
	"updateAPIKey":           string(cay.KeyChanged),
	"removeAPIKey":           string(cay.KeyRemoved),
	"createBudget":           string(cay.BudgetChanged),
	"updateBudget":           string(cay.BudgetChanged),
	"removeBudget":           string(cay.BudgetChanged),
	"setPrices":              "prices.changed",
	"setUsageLabels":         "usage_labels.changed",
	"adminKillSandboxes":     string(cay.SandboxKilled),
	"adminCancelBuilds":      "builds.cancelled",
	"adminCreateKey":         string(cay.KeyCreated),
	"adminDeleteKey":         string(cay.KeyRemoved),
	"setNodeStatus":          "node.changed",
	"adminRemoveNode":        "node.removed",
	"adminCreateJoinToken":   "cluster.token_made",
	"adminCollectGarbage":    "garbage.collected",
	"adminClearPackageCache": "packages.cleared",
	"addMember":              string(cay.MemberAdded),
	"setMemberRole":          string(cay.MemberChanged),
	"removeMember":           string(cay.MemberRemoved),
	"adminUpdatePerson":      personChanged,
	"adminCreateAccessToken": "access_token.created",
	"createAccessToken":      "access_token.created",
	"deleteAccessToken":      "access_token.removed",
	"adminCreateTeam":        string(cay.TeamCreated),
	"adminUpdateTeam":        teamChanged,
	"adminRemoveTeam":        string(cay.TeamRemoved),
	"adminReplaceTeamLimits": string(cay.TeamLimitsChanged),
	"adminUpdateTeamLimits":  string(cay.TeamLimitsChanged),
	"createWebhook":          string(cay.WebhookAdded),
	"updateWebhook":          string(cay.WebhookChanged),
	"rotateWebhook":          "webhook.rotated",
	"testWebhook":            "webhook.tested",
	"redeliverWebhook":       "webhook.redelivered",
	"deleteWebhook":          string(cay.WebhookRemoved),
	"createTrigger":          string(cay.TriggerAdded),
	"updateTrigger":          string(cay.TriggerChanged),
	"rotateTrigger":          string(cay.TriggerChanged),
	"removeTrigger":          string(cay.TriggerRemoved),
	"startRun":               "trigger.run_requested",
	"cancelRun":              "run.cancelled",
	"createApproval":         string(cay.ApprovalRequested),
	"decideApproval":         string(cay.ApprovalDecided),
	"setModelProvider":       "model_provider.set",
	"removeModelProvider":    "model_provider.removed",
	"createVolume":           string(cay.VolumeCreated),
	"deleteVolume":           string(cay.VolumeDeleted),
	"ownCreateVolume":        string(cay.VolumeCreated),
	"ownDeleteVolume":        string(cay.VolumeDeleted),
	"ownResizeVolume":        string(cay.VolumeResized),
	"cloneVolume":            string(cay.VolumeCreated),
	"snapshotVolume":         string(cay.VolumeSnapshotted),
	"deleteVolumeSnapshot":   string(cay.VolumeSnapshotRemoved),
	"restoreVolume":          string(cay.VolumeRestored),
	"fillVolume":             "volume.filled",
	"requestBuildV2":         "build.requested",
	"requestBuild":           "build.requested",
	"startBuild":             "build.started",
	"updateTemplate":         "template.updated",
	"updateTemplateV1":       "template.updated",
	"deleteTemplate":         "template.removed",
	"assignTags":             "tags.assigned",
	"removeTags":             "tags.removed",
	"joinNetwork":            "private_network.joined",
	"leaveNetwork":           "private_network.left",
	"setBandwidth":           "sandbox.bandwidth_changed",
	"addSSHKey":              "ssh_key.added",
	"removeSSHKey":           "ssh_key.removed",
	"pullImage":              "image.pulled",
	"importImage":            "image.imported",
	"removeImage":            "image.removed",
	"createCheckpoint":       string(cay.SandboxCheckpointed),
	"rollbackSandbox":        string(cay.SandboxRolledBack),
	"undoSandbox":            string(cay.SandboxRolledBack),
	"promoteSandbox":         string(cay.SandboxPromoted),
	"setAutoCheckpoints":     "sandbox.auto_checkpoints_changed",
	"labelCheckpoint":        "checkpoint.labelled",
	"deleteCheckpoint":       "checkpoint.removed",
	"forkCheckpoint":         string(cay.SandboxForked),
	"exportTemplate":         "template.exported",
	"getUploadLink":          "upload.allowed",
	"createConsoleLink":      "console.link_made",
	"logOut":                 sessionEnded,
	"endSession":             sessionEnded,
	"endSessions":            sessionEnded,
	"adminEndSession":        sessionEnded,
	"adminEndSessions":       sessionEnded,
	"connectSandbox":         connected,
	"connectSandboxV2":       connected,
	"accessSandbox":          connected,
	"createTicket":           connected,
	"actOnSandboxes":         "sandboxes.changed",
}

// Actions returns the action that the audit log has of each operation that
// changes something, by the operation's id.
func Actions() map[string]string { return maps.Clone(actions) }

// Unaudited returns, by their ids, why operations are not recorded whose method
// says that they change something.
func Unaudited() map[string]string { return maps.Clone(unaudited) }

// connected is the action of a client that asks for the tokens of a sandbox,
// which programs do every few seconds: it is counted.
const connected = "sandbox.connected"

// sessionEnded is the action of an operation that ends sessions.
const sessionEnded = "session.ended"

// read is the action of a client that reads what it may not.
const read = "read"

// teamChanged is the action of an operation that may give several events.
const teamChanged = "team.changed"

// personChanged is the action of an operation that has one of two names.
const personChanged = "person.changed"

// told reports whether a row tells of an operation already.
func told(from *cay.Origin, action string) bool {
	if action == teamChanged && (from.Told(string(cay.TeamRenamed)) || from.Told(string(cay.TeamDisabled)) || from.Told(string(cay.TeamEnabled))) {
		return true
	}
	if action == personChanged && (from.Told("person.disabled") || from.Told("person.enabled")) {
		return true
	}
	return from.Told(action)
}

// unaudited are the operations that are not recorded though their method says
// that they change something, with the reason.
var unaudited = map[string]string{
	"refreshSandbox": "an end that moves on by a minute and more gives an event, which is recorded",
	"exchangeToken":  "the key that it makes is recorded",
	"beginLogin":     "nothing is known of its caller; the login is recorded",
	"redeemLogin":    "the login is recorded when the person has come",

	"readDockerfile": "it changes nothing",

	"openConsoleSession": "the session is recorded, and a refusal is",
	"buildTemplateV1":    "gone",
	"startBuildV1":       "gone",
	"rebuildTemplateV1":  "gone",
}

// recordOwn and record have every operation recorded, each for one contract.
func (s *server) recordOwn(next cayv1.StrictHandlerFunc, operation string) cayv1.StrictHandlerFunc {
	return func(ctx context.Context, w http.ResponseWriter, r *http.Request, request any) (any, error) {
		out, err := next(ctx, w, r, request)
		return out, s.recorded(ctx, r, operation, out, err)
	}
}

func (s *server) record(next e2b.StrictHandlerFunc, operation string) e2b.StrictHandlerFunc {
	return func(ctx context.Context, w http.ResponseWriter, r *http.Request, request any) (any, error) {
		out, err := next(ctx, w, r, request)
		return out, s.recorded(ctx, r, operation, out, err)
	}
}

// recorded records an operation that was carried out or refused, and returns
// what its client is told. Failures and refusals are counted: a client may try
// without end.
func (s *server) recorded(ctx context.Context, r *http.Request, operation string, out any, err error) error {
	operation = strings.ToLower(operation[:1]) + operation[1:]
	action, changes := actions[operation]
	if _, not := unaudited[operation]; !changes && !not && r.Method != http.MethodGet {
		action, changes = operation, true // a test has it named
	}
	x := audit.Seen{Who: callerOf(ctx), Action: action, Target: targetOf(r), Details: []string{"operation", operation}}
	if err != nil {
		x.Outcome, x.Details = cay.OutcomeFailed, append(x.Details, "error", codeOf(err))
	}
	if cay.KindOf(err) == cay.Denied {
		x.Outcome = cay.OutcomeDenied
		if !changes {
			x.Action, changes = read, true
		}
	}
	_, later := out.(*imageProgress)
	switch {
	case !changes || later && err == nil:
	case err != nil || action == connected:
		s.audit.Count(x)
	case !told(x.Who.From, action):
		return s.audit.Record(ctx, x.Who, action, x.Target, cay.OutcomeOK)
	}
	return err
}

// codeOf says in a word why an operation failed. The text of an error may
// repeat what the client sent.
func codeOf(err error) string {
	var ours *cay.Error
	if errors.As(err, &ours) && ours.Code != "" {
		return ours.Code
	}
	return string(cay.KindOf(err))
}

// targetOf names what the path of a request names.
func targetOf(r *http.Request) string {
	route := chi.RouteContext(r.Context())
	if route == nil {
		return ""
	}
	var names []string
	for i, key := range route.URLParams.Keys {
		if key != "*" && route.URLParams.Values[i] != "" {
			names = append(names, route.URLParams.Values[i])
		}
	}
	return strings.Join(names, "/")
}

const (
	defaultAudit = 100
	maxAudit     = 1000
)

var errNoAudit = cay.Errorf(cay.Unsupported, "this server keeps no audit log")

// ListAudit lists rows of the caller's team.
func (o own) ListAudit(ctx context.Context, r cayv1.ListAuditRequestObject) (cayv1.ListAuditResponseObject, error) {
	page, err := o.auditPage(ctx, cayv1.ListAllAuditParams{
		Actor: r.Params.Actor, Action: r.Params.Action, Target: r.Params.Target, From: r.Params.From, To: r.Params.To,
		Before: r.Params.Before, Limit: r.Params.Limit,
	}, false)
	if err != nil {
		return nil, err
	}
	return cayv1.ListAudit200JSONResponse{AuditJSONResponse: page}, nil
}

// ListAllAudit lists rows of all teams.
func (o own) ListAllAudit(ctx context.Context, r cayv1.ListAllAuditRequestObject) (cayv1.ListAllAuditResponseObject, error) {
	page, err := o.auditPage(ctx, r.Params, true)
	if err != nil {
		return nil, err
	}
	return cayv1.ListAllAudit200JSONResponse{AuditJSONResponse: page}, nil
}

func (o own) auditPage(ctx context.Context, p cayv1.ListAllAuditParams, all bool) (cayv1.AuditJSONResponse, error) {
	q := audit.Query{
		Team: cay.TeamID(value(p.Team, "")), Actor: value(p.Actor, ""), Action: value(p.Action, ""), Target: value(p.Target, ""),
		From: value(p.From, time.Time{}), To: value(p.To, time.Time{}), Before: value(p.Before, 0),
		Newest: true, Limit: int(value(p.Limit, defaultAudit)),
	}
	page := cayv1.AuditJSONResponse{Rows: []cayv1.AuditRow{}}
	switch {
	case o.audit == nil:
		return page, errNoAudit
	case q.Limit < 1 || q.Limit > maxAudit:
		return page, cay.Errorf(cay.Invalid, "limit: must be 1 to %d", maxAudit)
	case q.Before < 0 || p.Before != nil && q.Before == 0:
		return page, cay.Errorf(cay.Invalid, "before: must be the seq of a row")
	case !q.To.IsZero() && !q.From.Before(q.To):
		return page, cay.Errorf(cay.Invalid, "from: must be before to")
	}
	rows, err := o.audit.List(ctx, callerOf(ctx), q, all)
	if err != nil {
		return page, err
	}
	for _, r := range rows {
		page.Rows = append(page.Rows, wireAuditRow(r))
	}
	if len(rows) == q.Limit {
		page.Next = &rows[len(rows)-1].Seq
	}
	return page, nil
}

func wireAuditRow(r cay.AuditRow) cayv1.AuditRow {
	w := audit.WireRow(r)
	return cayv1.AuditRow{
		Seq: w.Seq, At: w.At, Actor: cayv1.AuditActor{Kind: w.Actor.Kind, ID: w.Actor.ID, Name: w.Actor.Name}, TeamID: w.Team, Action: w.Action, Target: w.Target, Outcome: w.Outcome,
		RequestID: w.Request, Address: w.Address, UserAgent: w.Agent, Details: w.Details, Prev: w.Prev, Hash: w.Hash,
	}
}
