package rest

import (
	"context"
	"strings"
	"time"

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
// What could be no id is simply of no sandbox.
func sandboxID(s string) cay.SandboxID {
	id, _, _ := strings.Cut(s, "-")
	return cay.SandboxID(id)
}

// CreateSandbox starts a sandbox.
func (s *server) CreateSandbox(ctx context.Context, r CreateSandboxRequestObject) (CreateSandboxResponseObject, error) {
	box, err := s.create(ctx, r.Body, value(r.Body.Secure, false), defaultTimeoutV1, r.Params.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	return CreateSandbox201JSONResponse{SandboxJSONResponse(box)}, nil
}

// CreateSandboxV2 starts a sandbox, which is always secure.
func (s *server) CreateSandboxV2(ctx context.Context, r CreateSandboxV2RequestObject) (CreateSandboxV2ResponseObject, error) {
	box, err := s.create(ctx, r.Body, true, defaultTimeoutV2, r.Params.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	return CreateSandboxV2201JSONResponse{SandboxJSONResponse(box)}, nil
}

func (s *server) create(ctx context.Context, body *NewSandbox, secure bool, timeout int64, key *string) (Sandbox, error) {
	spec, err := createSpec(body, secure, timeout)
	if err != nil {
		return Sandbox{}, err
	}
	if key != nil && *key == "" {
		return Sandbox{}, cay.Errorf(cay.Invalid, "Idempotency-Key: is empty")
	}
	spec.Team, spec.IdempotencyKey = teamOf(ctx), value(key, "")
	box, err := s.control.Create(ctx, spec)
	if err != nil {
		return Sandbox{}, err
	}
	return s.sandbox(box), nil
}

// sandbox is a sandbox with what is needed to talk to it.
func (s *server) sandbox(b cay.Sandbox) Sandbox {
	access, traffic := s.control.TokensOf(b)
	return Sandbox{
		SandboxID: string(b.ID), TemplateID: string(b.Template), ClientID: clientID,
		EnvdVersion: guest.EnvdVersion, Alias: pointer(b.Alias), Domain: pointer(s.domain),
		EnvdAccessToken: pointer(access), TrafficAccessToken: pointer(traffic), Notice: pointer(b.Notice),
	}
}

// GetSandbox describes a sandbox.
func (s *server) GetSandbox(ctx context.Context, r GetSandboxRequestObject) (GetSandboxResponseObject, error) {
	b, err := s.control.Get(ctx, teamOf(ctx), sandboxID(r.SandboxID))
	if err != nil {
		return nil, err
	}
	access, _ := s.control.TokensOf(b)
	end := b.EndAt
	if b.State == cay.Paused {
		end = b.EndedAt
	}
	onTimeout := cay.PauseOnTimeout
	if b.OnTimeout == "" || b.OnTimeout == cay.KillOnTimeout {
		onTimeout = cay.KillOnTimeout
	}
	return GetSandbox200JSONResponse{
		SandboxID: string(b.ID), TemplateID: string(b.Template), ClientID: clientID,
		EnvdVersion: guest.EnvdVersion, Alias: pointer(b.Alias), Domain: pointer(s.domain),
		EnvdAccessToken: pointer(access), Notice: pointer(b.Notice),
		StartedAt: b.StartedAt, EndAt: end, State: wireState(b.State),
		CPUCount: b.Limits.CPUs, MemoryMB: b.Limits.MemoryMB, DiskSizeMB: b.Limits.DiskMB,
		Metadata: wireMap(b.Metadata), Network: wireNetwork(b.Network),
		Lifecycle:           &Lifecycle{AutoResume: b.AutoResume, OnTimeout: string(onTimeout)},
		AllowInternetAccess: &b.Network.AllowInternet,
	}, nil
}

// KillSandbox ends a sandbox.
func (s *server) KillSandbox(ctx context.Context, r KillSandboxRequestObject) (KillSandboxResponseObject, error) {
	if err := s.control.Kill(ctx, teamOf(ctx), sandboxID(r.SandboxID)); err != nil {
		return nil, err
	}
	return KillSandbox204Response{}, nil
}

// ConnectSandbox makes sure that a sandbox runs for a while.
func (s *server) ConnectSandbox(ctx context.Context, r ConnectSandboxRequestObject) (ConnectSandboxResponseObject, error) {
	if r.Body.Timeout == nil {
		return nil, cay.Errorf(cay.Invalid, "timeout: is required")
	}
	box, resumed, err := s.connect(ctx, r.SandboxID, r.Body)
	switch {
	case err != nil:
		return nil, err
	case resumed:
		return ConnectSandbox201JSONResponse(box), nil
	}
	return ConnectSandbox200JSONResponse{SandboxJSONResponse(box)}, nil
}

// ConnectSandboxV2 is ConnectSandbox with a default timeout.
func (s *server) ConnectSandboxV2(ctx context.Context, r ConnectSandboxV2RequestObject) (ConnectSandboxV2ResponseObject, error) {
	box, resumed, err := s.connect(ctx, r.SandboxID, r.Body)
	switch {
	case err != nil:
		return nil, err
	case resumed:
		return ConnectSandboxV2201JSONResponse(box), nil
	}
	return ConnectSandboxV2200JSONResponse{SandboxJSONResponse(box)}, nil
}

func (s *server) connect(ctx context.Context, id string, body *Connect) (Sandbox, bool, error) {
	timeout, memory := int64(defaultTimeoutV2), true
	if body != nil {
		timeout, memory = value(body.Timeout, timeout), value(body.Memory, true)
	}
	b, resumed, err := s.control.Connect(ctx, teamOf(ctx), sandboxID(id), seconds(timeout), memory)
	if err != nil {
		return Sandbox{}, false, err
	}
	return s.sandbox(b), resumed, nil
}

// SetSandboxTimeout makes a sandbox end that long from now.
func (s *server) SetSandboxTimeout(ctx context.Context, r SetSandboxTimeoutRequestObject) (SetSandboxTimeoutResponseObject, error) {
	if r.Body.Timeout == nil {
		return nil, cay.Errorf(cay.Invalid, "timeout: is required")
	}
	if err := s.control.SetTimeout(ctx, teamOf(ctx), sandboxID(r.SandboxID), seconds(*r.Body.Timeout)); err != nil {
		return nil, err
	}
	return SetSandboxTimeout204Response{}, nil
}

// RefreshSandbox makes sure that a sandbox runs for a while, by E2B's older
// call.
func (s *server) RefreshSandbox(ctx context.Context, r RefreshSandboxRequestObject) (RefreshSandboxResponseObject, error) {
	duration := int64(refreshAtLeast)
	if r.Body != nil {
		duration = value(r.Body.Duration, duration)
	}
	if duration < 0 || duration > refreshAtMost {
		return nil, cay.Errorf(cay.Invalid, "duration: must be 0 to %d seconds", refreshAtMost)
	}
	duration = max(duration, refreshAtLeast)
	if err := s.control.Refresh(ctx, teamOf(ctx), sandboxID(r.SandboxID), seconds(duration)); err != nil {
		return nil, err
	}
	return RefreshSandbox204Response{}, nil
}

// wireState is a state in E2B's words, which know only two.
func wireState(s cay.State) string {
	switch s {
	case cay.Pausing, cay.Paused, cay.Resuming:
		return "paused"
	}
	return "running"
}

func wireMap(m map[string]string) *StringMap {
	if len(m) == 0 {
		return nil
	}
	out := StringMap(m)
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
