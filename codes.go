package cay

import (
	"slices"
	"time"
)

// The codes of errors: an error's Code is one of these or empty. Each has an
// entry in Codes, which docs/use/errors.md is rendered from.
const (
	CodeInternal = "internal_server_error"

	CodeCapacity          = "sandbox_capacity_unavailable"
	CodeNodeAway          = "node_unavailable"
	CodeNetworkElsewhere  = "network_on_another_node"
	CodeNotReplicated     = "snapshot_not_replicated"
	CodeProcessor         = "processor_lacks_feature"
	CodeCreateFailed      = "sandbox_create_failed"
	CodeCreateRefused     = "sandbox_create_refused"
	CodeGuestUnresponsive = "sandbox_guest_agent_unresponsive"
	CodeSavedUnresponsive = "sandbox_snapshot_guest_agent_unresponsive"
	CodeDamaged           = "snapshot_damaged"
	CodeLost              = "snapshot_lost"
	CodeStorageDown       = "storage_down"
	CodeRestoreTimeout    = "sandbox_restore_timeout"
	CodePaused            = "sandbox_paused"
	CodeEnded             = "sandbox_ended"

	CodeKeyMismatch   = "idempotency_request_mismatch"
	CodeKeyInProgress = "idempotency_in_progress"
	CodeKeyUnknown    = "idempotency_outcome_unknown"
	CodeKeyEnded      = "idempotency_key_ended"

	CodeLoginFailed    = "login_failed"
	CodeLoginUnknown   = "login_unknown"
	CodeLoginRefused   = "login_refused"
	CodeSessionEnded   = "session_ended"
	CodeProviderDown   = "login_provider_down"
	CodeLoginRate      = "login_rate_limited"
	CodeTokenInvalid   = "token_invalid"
	CodeTokenSignature = "token_signature_wrong"
	CodeTokenAudience  = "token_audience_wrong"
	CodeTokenExpired   = "token_expired"
	CodeTokenEarly     = "token_not_yet_valid"
	CodeTokenReplayed  = "token_replayed"
	CodeTokenRefused   = "token_refused"

	CodeGone  = "route_gone"
	CodeScope = "scope_missing"
	// CodeKeyExpired and CodeTeamDisabled are told to the holder of the right key
	// alone.
	CodeKeyExpired   = "key_expired"
	CodeTeamDisabled = "team_disabled"
	CodeTeamNotEmpty = "team_not_empty"
	CodeNameTaken    = "name_taken"
	CodeDisabled     = "account_disabled"
	CodeBounds       = "key_bounds"
	CodeLastOwner    = "last_owner"
	CodeOwnersOnly   = "owner_needed"
	CodePeopleOnly   = "person_needed"
	CodeTeamLimit    = "team_limit_reached"
	CodeVolumeInUse  = "volume_in_use"
	CodeVolumeGone   = "volume_gone"
	CodeBuildLimit   = "build_limit_reached"
	CodeBudget       = "budget_exhausted"
	CodeRateLimit    = "rate_limit_exceeded"
	// CodeTemplateBuilding is of a template that the server builds by itself.
	CodeTemplateBuilding = "template_building"
	CodeStreamLimit      = "stream_limit_reached"

	// Codes of the files of volumes.
	CodePathNotFound   = "path_not_found"
	CodePathExists     = "path_already_exists"
	CodeVolumeRoot     = "cannot_delete_root"
	CodeDepth          = "depth_out_of_range"
	CodeWebhookLimit   = "webhook_limit_reached"
	CodeWebhookAddress = "webhook_address_private"

	CodeTriggerLimit = "trigger_limit_reached"
	CodeTriggerFull  = "trigger_queue_full"
	CodeTriggerOff   = "trigger_disabled"
	CodeHookProof    = "hook_proof_wrong"
	CodeHookLate     = "hook_request_late"

	CodeApprovalOver  = "approval_over"
	CodeApprovalOwn   = "approval_own"
	CodeApprovalLimit = "approval_limit_reached"
	CodeCommandWaits  = "command_waits_for_approval"
	CodeCommandDenied = "command_not_approved"
)

// Retry says whether the same request, sent again as it is, may succeed, and
// how long a client should wait before.
type Retry struct {
	May   bool
	After time.Duration // whole seconds
}

// KindInfo describes the errors of a kind that have no code.
type KindInfo struct {
	Kind    Kind
	Status  int // of HTTP
	Retry   Retry
	Meaning string
	Cure    string
}

// CodeInfo describes the errors of a code.
type CodeInfo struct {
	Code    string
	Kind    Kind
	Status  int // of HTTP, where it is not the kind's
	Retry   Retry
	Meaning string
	Cure    string
}

// Kinds lists all kinds.
func Kinds() []KindInfo {
	return []KindInfo{
		{Invalid, 400, Retry{}, "The request is wrong; the message names the field.", "Correct the field."},
		{Unauthenticated, 401, Retry{}, "The request carries no API key, or a wrong one.", "Send a key of this server as `X-API-Key`; `cay env` prints one."},
		{Denied, 403, Retry{}, "The key is valid, and its team may not do this.", "Use a key of the team that owns the thing."},
		{NotFound, 404, Retry{}, "The team has no such thing, or it has ended.", "Check the id; `cay sandbox why` explains why a sandbox ended."},
		{Conflict, 409, Retry{}, "The state of the thing forbids it; the message names the state.", "Bring it into the state that the request needs."},
		{Exhausted, 429, Retry{}, "A limit is reached; the message names it.", "End or remove some, or have the limit raised."},
		{Internal, 500, Retry{}, "A part of the server broke.", "Look for the request in the server's log."},
		{Unsupported, 501, Retry{}, "This server does not offer it.", "Use what the message or the documents name instead."},
		{Unavailable, 503, Retry{true, time.Second}, "The thing is busy or away for a moment. Nothing was changed.", "Send the same request again."},
		{NoSpace, 507, Retry{}, "A disk is full; the message names it.", "Free space on it, or have the server's operator do so."},
	}
}

// Codes lists all codes. Errors of a code may be of another kind than the one
// named here where the code is a detail of a step that failed.
func Codes() []CodeInfo {
	return slices.Concat(sandboxCodes(), requestCodes(), loginCodes())
}

func loginCodes() []CodeInfo {
	return []CodeInfo{
		{Code: CodeLoginFailed, Kind: Unauthenticated,
			Meaning: "A login did not come to its end: the provider refused it, or the answer belongs to another login or another browser.",
			Cure:    "Begin the login again."},
		{Code: CodeLoginUnknown, Kind: NotFound,
			Meaning: "There is no such login: it is over, it took longer than ten minutes, or the server was started meanwhile.",
			Cure:    "Begin the login again."},
		{Code: CodeLoginRefused, Kind: Denied,
			Meaning: "The person is known to the login provider, and may not log in here; the message says why.",
			Cure:    "Ask the operator of this server: the rules for logins decide, and a person may be disabled."},
		{Code: CodeSessionEnded, Kind: Unauthenticated,
			Meaning: "The session is over: logged out, ended by an admin, unused for 12 hours, or 7 days old.",
			Cure:    "Log in again: `cay login`."},
		{Code: CodeProviderDown, Kind: Unavailable, Retry: Retry{true, 5 * time.Second},
			Meaning: "The provider of logins cannot be reached, or does not answer as one should. API keys and sessions go on working.",
			Cure:    "Try again, or ask the operator of this server."},
		{Code: CodeLoginRate, Kind: Exhausted, Retry: Retry{true, 30 * time.Second},
			Meaning: "One address has asked for too many logins or exchanges within a minute.",
			Cure:    "Wait a minute."},
		{Code: CodeTokenInvalid, Kind: Unauthenticated,
			Meaning: "The token for an exchange cannot be read, has no end, or comes from an issuer that this server does not know.",
			Cure:    "Send an ID token of an issuer that the server's operator has named."},
		{Code: CodeTokenSignature, Kind: Unauthenticated,
			Meaning: "The token is not signed by a key of its issuer.",
			Cure:    "Send the token as the issuer gave it."},
		{Code: CodeTokenAudience, Kind: Unauthenticated,
			Meaning: "The token was made for another audience.",
			Cure:    "Ask the issuer for the audience that the message names."},
		{Code: CodeTokenExpired, Kind: Unauthenticated,
			Meaning: "The token's time is over, by more than a minute.",
			Cure:    "Ask the issuer for a new one; set the clocks of both machines."},
		{Code: CodeTokenEarly, Kind: Unauthenticated,
			Meaning: "The token's time has not come, by more than a minute.",
			Cure:    "Set the clocks of both machines."},
		{Code: CodeTokenReplayed, Kind: Unauthenticated,
			Meaning: "The token was exchanged before.",
			Cure:    "Ask the issuer for a new one for each exchange."},
		{Code: CodeTokenRefused, Kind: Denied,
			Meaning: "The token is good, and no rule of this server's takes its claims.",
			Cure:    "Compare the claims that the message names with the rules of the operator."},
	}
}

func sandboxCodes() []CodeInfo {
	return []CodeInfo{
		{Code: CodeCapacity, Kind: Unavailable, Retry: Retry{true, 5 * time.Second},
			Meaning: "The machine has no memory, task or address left for another sandbox.",
			Cure:    "Wait until others end, or end some. The SDKs wait and retry by themselves."},
		{Code: CodeNodeAway, Kind: Unavailable, Retry: Retry{true, 5 * time.Second},
			Meaning: "The node of a cluster that the request is for does not answer now, or has lost its lease.",
			Cure:    "Send the request again. A node that stays away is declared gone after 75 seconds: its running sandboxes are over then, and those that were paused resume elsewhere."},
		{Code: CodeNetworkElsewhere, Kind: Conflict,
			Meaning: "A sandbox of a cluster was to join a private network whose members are on another node, and no packet leaves a node.",
			Cure:    "Create the sandbox with `near` set to one of the members, as `cay sandbox create --network` does, and have it join then."},
		{Code: CodeNotReplicated, Kind: Unavailable,
			Meaning: "A pause that was to be durable: the sandbox is paused, and the copy of what was saved was not in the bucket in time. A start on another node of a cluster: the bucket has no copy of the snapshot yet.",
			Cure:    "Nothing is lost: the copy follows when the bucket answers and the node that made the snapshot is there. `replicated` of the sandbox and the event `sandbox.replicated` tell; a pause that is sent again answers 409, a start may be sent again."},
		{Code: CodeProcessor, Kind: Unavailable, Retry: Retry{true, 5 * time.Second},
			Meaning: "The memory of a snapshot relies on a feature that the processor of the node lacks, and another node of the cluster has.",
			Cure:    "Send the request again: it is brought to a node that has the feature. Where none has, a paused sandbox starts from its files, and says so; checkpoints and named snapshots of memory have none, and do not start."},
		{Code: CodeCreateFailed, Kind: Internal, Retry: Retry{true, time.Second},
			Meaning: "A sandbox could not be started this time. Everything that its start made is removed.",
			Cure:    "Send the same request again. If that fails too, look for the sandbox in the server's log."},
		{Code: CodeCreateRefused, Kind: Internal,
			Meaning: "A sandbox cannot be started, for a reason that no retry changes: its template or snapshot does not fit this machine or this release.",
			Cure:    "Build the template again, or free what the message names."},
		{Code: CodeGuestUnresponsive, Kind: Unavailable,
			Meaning: "The agent in the sandbox does not answer, so a pause that needs it was refused. The sandbox runs on as it was.",
			Cure:    "Pause without `requireHealthyGuest` and with memory, or end what starves the agent. `cay sandbox logs` shows the guest's last lines."},
		{Code: CodeSavedUnresponsive, Kind: Conflict,
			Meaning: "The sandbox was saved while the agent in it did not answer, so its memory is not restored.",
			Cure:    "Resume it with `memory: false` (`on_resume=\"reboot\"` in the SDKs): it boots from its files."},
		{Code: CodePaused, Kind: Conflict, Status: 502,
			Meaning: "A request was for a sandbox that is paused: no request resumes this one, or it was paused while the request was under way. Then the status is 503, with `Retry-After`, and the message says whether the request may have run.",
			Cure:    "Connect to the sandbox, which resumes it, or create it with `auto_resume`; after 503, send the request again if it may run twice."},
		{Code: CodeEnded, Kind: NotFound, Status: 502,
			Meaning: "A request was for a sandbox that has ended; `cause` and the message say why.",
			Cure:    "Create another; `cay sandbox why` has the evidence."},
		{Code: CodePathNotFound, Kind: NotFound,
			Meaning: "The volume has nothing at that path, or a link on the way leads nowhere.",
			Cure:    "List the directory above; `force` makes the directories that lack."},
		{Code: CodePathExists, Kind: Conflict,
			Meaning: "Something is at that path of the volume already, or it is a directory where a file is to be written.",
			Cure:    "Choose another path; a directory that may be there is made with `force`."},
		{Code: CodeVolumeRoot, Kind: Invalid,
			Meaning: "The root directory of a volume cannot be removed.",
			Cure:    "Remove what is in it, or delete the volume."},
		{Code: CodeDepth, Kind: Invalid,
			Meaning: "A listing goes 1 to 100 directories deep.",
			Cure:    "List a directory further down."},
		{Code: CodeDamaged, Kind: Internal,
			Meaning: "A file of a snapshot is missing or does not have the bytes that were written.",
			Cure:    "Resume with `memory: false` if its memory is what is damaged; `cay snapshot verify` names the file."},
		{Code: CodeLost, Kind: Internal, Status: 410,
			Meaning: "The node of a cluster that made the snapshot is gone, or was removed, or has it no more, and the bucket has no copy of it.",
			Cure:    "Start from another snapshot. If the node's server comes back with its disk, the snapshot is there again; a pause that is `durable` is not lost so."},
		{Code: CodeRestoreTimeout, Kind: Unavailable,
			Meaning: "The memory of a snapshot was not restored in the time that a restore has. The rests of the restore are removed; the snapshot, and a sandbox that is paused, are as they were.",
			Cure:    "Send the same request again: the machine may be busy. If that fails too, resume with `memory: false` (`on_resume=\"reboot\"` in the SDKs): it boots from its files."},
		{Code: CodeStorageDown, Kind: Internal,
			Meaning: "The file system of the data directory is down: its disk failed or its file is damaged.",
			Cure:    "The server's operator repairs it: `cay storage status` says how."},
	}
}

func requestCodes() []CodeInfo {
	return []CodeInfo{
		{Code: CodeInternal, Kind: Internal,
			Meaning: "A part of the server broke in a way that it has no other code for.",
			Cure:    "Look for the request in the server's log."},
		{Code: CodeKeyMismatch, Kind: Conflict, Status: 422,
			Meaning: "The `Idempotency-Key` was used for a request that asked for something else, or by an API key with other bounds.",
			Cure:    "Use a new key for a new sandbox."},
		{Code: CodeKeyInProgress, Kind: Conflict, Retry: Retry{true, time.Second},
			Meaning: "The first request with this `Idempotency-Key` is still at work.",
			Cure:    "Send the same request again: it is answered with the sandbox that the first one makes."},
		{Code: CodeKeyUnknown, Kind: Conflict,
			Meaning: "The server could not record how the first request with this `Idempotency-Key` ended.",
			Cure:    "List the sandboxes; use a new key for a new one."},
		{Code: CodeKeyEnded, Kind: Conflict,
			Meaning: "The sandbox that the first request with this `Idempotency-Key` made has ended.",
			Cure:    "Use a new key for a new sandbox."},
		{Code: CodeGone, Kind: Unsupported, Status: 410,
			Meaning: "The route belongs to an older API that is not served any more.",
			Cure:    "Use the route that the message names; newer SDKs do."},
		{Code: CodeScope, Kind: Denied,
			Meaning: "The API key, or the role of the person, lacks a scope; the message names it.",
			Cure:    "Use a key that has the scope, or have your role in the team raised."},
		{Code: CodeKeyExpired, Kind: Unauthenticated,
			Meaning: "The API key was right and its time is over. A wrong key has no code.",
			Cure:    "Make a new one: `cay key create`."},
		{Code: CodeTeamDisabled, Kind: Denied,
			Meaning: "The operator of this server has disabled the team: its credentials open nothing, and its saved state stays.",
			Cure:    "Ask the operator to enable it: `cay team enable`."},
		{Code: CodeTeamNotEmpty, Kind: Conflict,
			Meaning: "A team was to be removed that has sandboxes, templates, keys or other things; the message counts them.",
			Cure:    "Remove them first, or remove the team with `--force` (`?force=true`), which takes them with it."},
		{Code: CodeBounds, Kind: Denied,
			Meaning: "The API key is kept to some templates, to metadata that every sandbox of it has, or to a budget that a key which it makes would escape; the message says which.",
			Cure:    "Use a template of the key's list, leave the metadata to the key, or use another key."},
		{Code: CodeDisabled, Kind: Denied,
			Meaning: "The person behind the token, the session or the API key is disabled on this server.",
			Cure:    "Ask the operator of the server: `cay person enable`."},
		{Code: CodeLastOwner, Kind: Conflict,
			Meaning: "The change would leave the team without an owner.",
			Cure:    "Make another member an owner first."},
		{Code: CodeOwnersOnly, Kind: Denied,
			Meaning: "Owners of a team are made, changed and removed by its owners, and by the operator of the server.",
			Cure:    "Ask an owner."},
		{Code: CodePeopleOnly, Kind: Denied,
			Meaning: "The request is about the person who makes it, and an API key is none.",
			Cure:    "Log in, or send an access token as `Authorization: Bearer`."},
		{Code: CodeNameTaken, Kind: Conflict,
			Meaning: "There is one of that name already.",
			Cure:    "Choose another name."},
		{Code: CodeBudget, Kind: Exhausted,
			Meaning: "A budget is used up, or has no minute left of what is asked for; the message names it and says when it begins anew.",
			Cure:    "Have the budget raised, or wait until it begins anew. Reading, pausing, ending and downloading go on."},
		{Code: CodeTeamLimit, Kind: Exhausted,
			Meaning: "The team has all that it may have at once; waiting does not change that.",
			Cure:    "End, pause or remove some, or have the limit raised."},
		{Code: CodeVolumeInUse, Kind: Conflict,
			Meaning: "The volume cannot be deleted, restored or resized: sandboxes that run or are paused mount it, and the message names them, or work is under way with it.",
			Cure:    "End those sandboxes first."},
		{Code: CodeVolumeGone, Kind: Conflict,
			Meaning: "A sandbox, a checkpoint or a snapshot mounts a volume that was deleted; the message names it.",
			Cure:    "Resume the sandbox with `memory: false` (`on_resume=\"reboot\"` in the SDKs): it boots from its files, without the volume."},
		{Code: CodeRateLimit, Kind: Exhausted, Retry: Retry{true, time.Second},
			Meaning: "The team sends more requests a second of this class than it may; the `RateLimit-` headers tell how many.",
			Cure:    "Wait as long as `Retry-After` says. The SDKs wait and retry by themselves; `cay limits` shows the limits."},
		{Code: CodeTemplateBuilding, Kind: Unavailable, Retry: Retry{true, 10 * time.Second},
			Meaning: "The template is one that the server builds by itself, and is not there yet; the message says how far it is.",
			Cure:    "Wait: `cay template wait` on the server's machine returns when it is there."},
		{Code: CodeBuildLimit, Kind: Exhausted, Retry: Retry{true, 15 * time.Second},
			Meaning: "Too many builds are under way or wait.",
			Cure:    "Wait until one is done."},
		{Code: CodeStreamLimit, Kind: Exhausted, Retry: Retry{true, 5 * time.Second},
			Meaning: "The team has as many event streams open as it may at once, or the server has.",
			Cure:    "Close one, or wait."},
		{Code: CodeWebhookLimit, Kind: Exhausted,
			Meaning: "The team has as many webhooks as it may.",
			Cure:    "Remove one."},
		{Code: CodeWebhookAddress, Kind: Invalid,
			Meaning: "The address of a webhook is on a private network, or on the server's own.",
			Cure:    "Use a public address, or have the operator open the range with `CAY_WEBHOOK_OPEN`."},
		{Code: CodeTriggerLimit, Kind: Exhausted,
			Meaning: "The team has as many hooks and schedules as it may.",
			Cure:    "Remove one."},
		{Code: CodeTriggerFull, Kind: Exhausted, Retry: Retry{true, 30 * time.Second},
			Meaning: "As many runs of the hook wait as may, or the payloads of the team's runs have 64 MB.",
			Cure:    "Send the request again later, or give the hook more places: `maxRunning`, `maxWaiting`."},
		{Code: CodeTriggerOff, Kind: Conflict,
			Meaning: "The hook or the schedule is turned off. Nothing is run.",
			Cure:    "Turn it on, or stop sending."},
		{Code: CodeHookProof, Kind: Unauthenticated,
			Meaning: "The request does not prove that its sender knows the hook's secret: it has no signature of the hook's kind, or a wrong one.",
			Cure:    "Give the sender the hook's secret; `cay hook rotate` makes another."},
		{Code: CodeHookLate, Kind: Unauthenticated,
			Meaning: "The request was signed more than five minutes ago, or will be: it is replayed, or a clock is wrong.",
			Cure:    "Set the sender's clock; send the request anew."},
		{Code: CodeApprovalOver, Kind: Conflict,
			Meaning: "The approval was decided, or its time is over. The first decision counts.",
			Cure:    "`cay approvals show` tells what became of it."},
		{Code: CodeApprovalOwn, Kind: Denied,
			Meaning: "The credential is of the party that asks: it asked, it made the sandbox, or it goes back to the same key or person.",
			Cure:    "Decide as a person, or with a key of another origin, such as one that the operator makes: `cay key create --team TEAM --scope approvals:decide`."},
		{Code: CodeApprovalLimit, Kind: Exhausted, Retry: Retry{true, 30 * time.Second},
			Meaning: "As many questions of the sandbox, the key or the team wait for a decision as may.",
			Cure:    "Decide some, or wait until they expire."},
		{Code: CodeCommandWaits, Kind: Denied, Retry: Retry{true, 10 * time.Second},
			Meaning: "The sandbox asks a person about this command or code, and there is no decision yet. It was not started.",
			Cure:    "Have the approval that the message names decided, and start the same again: a yes counts for a quarter of an hour."},
		{Code: CodeCommandDenied, Kind: Denied,
			Meaning: "The sandbox asks a person about this command or code, and the answer is no, or none came in time, or it is too long to be shown. It was not started.",
			Cure:    "Read the note of the approval that the message names; start something else, or ask its owner."},
	}
}

// RetryOf says whether a client that met an error should send its request
// again: by the error's code, or else by its kind.
func RetryOf(err error) Retry {
	if c, ok := codeOf(err); ok {
		return c.Retry
	}
	return kindInfo(KindOf(err)).Retry
}

// StatusOf returns the HTTP status of an error.
func StatusOf(err error) int {
	if c, ok := codeOf(err); ok && c.Status != 0 {
		return c.Status
	}
	return kindInfo(KindOf(err)).Status
}

func codeOf(err error) (CodeInfo, bool) {
	if code := CodeOf(err); code != "" {
		for _, c := range Codes() {
			if c.Code == code {
				return c, true
			}
		}
	}
	return CodeInfo{}, false
}

// kindInfo describes a kind; one that is not known is Internal.
func kindInfo(kind Kind) KindInfo {
	var internal KindInfo
	for _, k := range Kinds() {
		switch k.Kind {
		case kind:
			return k
		case Internal:
			internal = k
		}
	}
	return internal
}
