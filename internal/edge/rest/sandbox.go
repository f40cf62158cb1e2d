package rest

import (
	"context"
	"strings"
	"time"

	"github.com/cay-run/cay/api/rest/e2b"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

const (
	// clientID is a legacy part of the wire; SDKs want it not empty.
	clientID = "00000000"

	defaultTimeoutV1 = 15  // seconds
	defaultTimeoutV2 = 300 // seconds
	refreshAtLeast   = 15  // seconds
	refreshAtMost    = 3600
)

// sandboxID reads an id of the path. Older clients add "-" and a client id.
// A malformed id is of no sandbox.
func sandboxID(s string) cay.SandboxID {
	id, _, _ := strings.Cut(s, "-")
	return cay.SandboxID(id)
}

// CreateSandbox starts a sandbox.
func (s *server) CreateSandbox(ctx context.Context, r e2b.CreateSandboxRequestObject) (e2b.CreateSandboxResponseObject, error) {
	box, err := s.create(ctx, r.Body, value(r.Body.Secure, false), defaultTimeoutV1, r.Params.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	return e2b.CreateSandbox201JSONResponse{SandboxJSONResponse: e2b.SandboxJSONResponse(box)}, nil
}

// CreateSandboxV2 starts a sandbox, which is always secure.
func (s *server) CreateSandboxV2(ctx context.Context, r e2b.CreateSandboxV2RequestObject) (e2b.CreateSandboxV2ResponseObject, error) {
	box, err := s.create(ctx, r.Body, true, defaultTimeoutV2, r.Params.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	return e2b.CreateSandboxV2201JSONResponse{SandboxJSONResponse: e2b.SandboxJSONResponse(box)}, nil
}

func (s *server) create(ctx context.Context, body *e2b.NewSandbox, secure bool, timeout int64, key *string) (e2b.Sandbox, error) {
	spec, err := createSpec(body, secure, timeout)
	if err != nil {
		return e2b.Sandbox{}, err
	}
	if key != nil && *key == "" {
		return e2b.Sandbox{}, cay.Errorf(cay.Invalid, "Idempotency-Key: is empty")
	}
	spec.IdempotencyKey = value(key, "")
	box, err := s.sandboxes.Create(ctx, callerOf(ctx), spec)
	if err != nil {
		return e2b.Sandbox{}, err
	}
	return s.sandbox(ctx, box)
}

// sandbox is a sandbox with what the caller needs to talk to it.
func (s *server) sandbox(ctx context.Context, b cay.Sandbox) (e2b.Sandbox, error) {
	access, traffic, err := s.sandboxes.TokensFor(ctx, callerOf(ctx), b)
	return e2b.Sandbox{
		SandboxID: string(b.ID), TemplateID: string(b.Template), ClientID: clientID,
		EnvdVersion: guest.EnvdVersion, Alias: pointer(b.Alias), Domain: pointer(s.domain),
		EnvdAccessToken: pointer(access), TrafficAccessToken: pointer(traffic), Notice: pointer(b.Notice),
	}, err
}

// GetSandbox describes a sandbox.
func (s *server) GetSandbox(ctx context.Context, r e2b.GetSandboxRequestObject) (e2b.GetSandboxResponseObject, error) {
	b, err := s.sandboxes.Get(ctx, callerOf(ctx), sandboxID(r.SandboxID))
	if err != nil {
		return nil, err
	}
	access, _, err := s.sandboxes.TokensFor(ctx, callerOf(ctx), b)
	if err != nil {
		return nil, err
	}
	end := b.EndAt
	if b.State == cay.Paused {
		end = b.EndedAt
	}
	onTimeout := cay.PauseOnTimeout
	if b.OnTimeout == "" || b.OnTimeout == cay.KillOnTimeout {
		onTimeout = cay.KillOnTimeout
	}
	var replicated *bool
	var at *time.Time
	if b.State == cay.Paused {
		replicated, at = s.replicated(b.ReplicatedAt)
	}
	return e2b.GetSandbox200JSONResponse{
		SandboxID: string(b.ID), TemplateID: string(b.Template), ClientID: clientID,
		EnvdVersion: guest.EnvdVersion, Alias: pointer(b.Alias), Domain: pointer(s.domain),
		EnvdAccessToken: pointer(access), Notice: pointer(b.Notice),
		StartedAt: b.StartedAt, EndAt: end, State: wireState(b.State),
		CPUCount: b.Limits.CPUs, MemoryMB: b.Limits.MemoryMB, DiskSizeMB: b.Limits.DiskMB,
		Metadata: wireMap(b.Metadata), Network: wireNetwork(b.Network), AskCommands: wireList(b.AskCommands),
		Lifecycle:           &e2b.Lifecycle{AutoResume: b.AutoResume, OnTimeout: string(onTimeout)},
		AllowInternetAccess: &b.Network.AllowInternet,
		PauseMode:           pauseMode(b), EnvdUnresponsiveAtPause: unresponsive(b),
		VolumeMounts: wireMounts(b.Volumes), Replicated: replicated, ReplicatedAt: at, OnHostLoss: pointer(string(b.OnHostLoss)),
	}, nil
}

// replicated tells whether the bucket has what was saved, and since when; nothing
// without a bucket.
func (s *server) replicated(since time.Time) (is *bool, at *time.Time) {
	if !s.sandboxes.Copies() {
		return nil, nil
	}
	is = new(bool)
	if *is = !since.IsZero(); *is {
		at = &since
	}
	return is, at
}

// pauseMode is how a paused sandbox was saved.
func pauseMode(b cay.Sandbox) *string {
	mode := "full"
	switch {
	case b.State != cay.Paused:
		return nil
	case b.Saved == cay.FilesSnapshot:
		mode = "filesystem"
	}
	return &mode
}

// unresponsive says of a paused sandbox that its agent did not answer when it
// was saved.
func unresponsive(b cay.Sandbox) *bool {
	return pointer(b.State == cay.Paused && b.Unresponsive)
}

// KillSandbox ends a sandbox.
func (s *server) KillSandbox(ctx context.Context, r e2b.KillSandboxRequestObject) (e2b.KillSandboxResponseObject, error) {
	if err := s.sandboxes.Kill(ctx, callerOf(ctx), sandboxID(r.SandboxID)); err != nil {
		return nil, err
	}
	return e2b.KillSandbox204Response{}, nil
}

// ConnectSandbox makes sure that a sandbox runs for a while.
func (s *server) ConnectSandbox(ctx context.Context, r e2b.ConnectSandboxRequestObject) (e2b.ConnectSandboxResponseObject, error) {
	if r.Body.Timeout == nil {
		return nil, cay.Errorf(cay.Invalid, "timeout: is required")
	}
	box, resumed, err := s.connect(ctx, r.SandboxID, r.Body)
	switch {
	case err != nil:
		return nil, err
	case resumed:
		return e2b.ConnectSandbox201JSONResponse(box), nil
	}
	return e2b.ConnectSandbox200JSONResponse{SandboxJSONResponse: e2b.SandboxJSONResponse(box)}, nil
}

// ConnectSandboxV2 is ConnectSandbox with a default timeout.
func (s *server) ConnectSandboxV2(ctx context.Context, r e2b.ConnectSandboxV2RequestObject) (e2b.ConnectSandboxV2ResponseObject, error) {
	box, resumed, err := s.connect(ctx, r.SandboxID, r.Body)
	switch {
	case err != nil:
		return nil, err
	case resumed:
		return e2b.ConnectSandboxV2201JSONResponse(box), nil
	}
	return e2b.ConnectSandboxV2200JSONResponse{SandboxJSONResponse: e2b.SandboxJSONResponse(box)}, nil
}

func (s *server) connect(ctx context.Context, id string, body *e2b.Connect) (e2b.Sandbox, bool, error) {
	timeout, memory := int64(defaultTimeoutV2), true
	if body != nil {
		timeout, memory = value(body.Timeout, timeout), value(body.Memory, true)
	}
	if err := s.payResume(ctx, sandboxID(id)); err != nil {
		return e2b.Sandbox{}, false, err
	}
	b, resumed, err := s.sandboxes.Connect(ctx, callerOf(ctx), sandboxID(id), seconds(timeout), memory)
	if err != nil {
		return e2b.Sandbox{}, false, err
	}
	box, err := s.sandbox(ctx, b)
	return box, resumed, err
}

// SetSandboxTimeout makes a sandbox end that long from now.
func (s *server) SetSandboxTimeout(ctx context.Context, r e2b.SetSandboxTimeoutRequestObject) (e2b.SetSandboxTimeoutResponseObject, error) {
	if r.Body.Timeout == nil {
		return nil, cay.Errorf(cay.Invalid, "timeout: is required")
	}
	if err := s.sandboxes.SetTimeout(ctx, callerOf(ctx), sandboxID(r.SandboxID), seconds(*r.Body.Timeout)); err != nil {
		return nil, err
	}
	return e2b.SetSandboxTimeout204Response{}, nil
}

// RefreshSandbox makes sure that a sandbox runs for a while, by E2B's older
// call.
func (s *server) RefreshSandbox(ctx context.Context, r e2b.RefreshSandboxRequestObject) (e2b.RefreshSandboxResponseObject, error) {
	duration := int64(refreshAtLeast)
	if r.Body != nil {
		duration = value(r.Body.Duration, duration)
	}
	if duration < 0 || duration > refreshAtMost {
		return nil, cay.Errorf(cay.Invalid, "duration: must be 0 to %d seconds", refreshAtMost)
	}
	duration = max(duration, refreshAtLeast)
	if err := s.sandboxes.Refresh(ctx, callerOf(ctx), sandboxID(r.SandboxID), seconds(duration)); err != nil {
		return nil, err
	}
	return e2b.RefreshSandbox204Response{}, nil
}

// wireState is a state in E2B's words, which know only two.
func wireState(s cay.State) string {
	switch s {
	case cay.Pausing, cay.Paused, cay.Resuming:
		return "paused"
	}
	return "running"
}

func wireMap(m map[string]string) *e2b.StringMap {
	if len(m) == 0 {
		return nil
	}
	out := e2b.StringMap(m)
	return &out
}

func wireList(l []string) *[]string {
	if len(l) == 0 {
		return nil
	}
	return &l
}

func wireTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
