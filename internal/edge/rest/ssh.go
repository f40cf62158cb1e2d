package rest

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/conns"
	"github.com/cay-run/cay/internal/edge/doors"
)

// ListSSHKeys lists the keys that open a team's sandboxes.
func (o own) ListSSHKeys(ctx context.Context, _ cayv1.ListSSHKeysRequestObject) (cayv1.ListSSHKeysResponseObject, error) {
	list, err := o.auth.SSHKeys(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := make(cayv1.ListSSHKeys200JSONResponse, 0, len(list))
	for _, k := range list {
		out = append(out, wireSSHKey(k))
	}
	return out, nil
}

// AddSSHKey has a key open a team's sandboxes.
func (o own) AddSSHKey(ctx context.Context, r cayv1.AddSSHKeyRequestObject) (cayv1.AddSSHKeyResponseObject, error) {
	k, err := o.auth.AddSSHKey(ctx, callerOf(ctx), value(r.Body.Name, ""), r.Body.PublicKey)
	if err != nil {
		return nil, err
	}
	err = o.audit.Record(ctx, callerOf(ctx), "ssh_key.added", string(k.ID), cay.OutcomeOK, "name", k.Name, "fingerprint", k.Fingerprint)
	if err != nil {
		return nil, err
	}
	return cayv1.AddSSHKey201JSONResponse(wireSSHKey(k)), nil
}

// RemoveSSHKey has a key open nothing any more, and ends what it opened.
func (o own) RemoveSSHKey(ctx context.Context, r cayv1.RemoveSSHKeyRequestObject) (cayv1.RemoveSSHKeyResponseObject, error) {
	if err := o.auth.RemoveSSHKey(ctx, callerOf(ctx), cay.SSHKeyID(r.KeyID)); err != nil {
		return nil, err
	}
	if o.ssh != nil {
		o.ssh.Review(teamOf(ctx))
	}
	return cayv1.RemoveSSHKey204Response{}, nil
}

func wireSSHKey(k cay.SSHKey) cayv1.SSHKey {
	return cayv1.SSHKey{
		ID: string(k.ID), Name: k.Name, Fingerprint: k.Fingerprint, PublicKey: k.Public, CreatedAt: k.CreatedAt.UTC(),
	}
}

// ConnectSSH tells of the SSH server, or makes the connection one to it.
func (o own) ConnectSSH(ctx context.Context, r cayv1.ConnectSSHRequestObject) (cayv1.ConnectSSHResponseObject, error) {
	who := callerOf(ctx)
	if err := who.May(cay.ExecSandboxes); err != nil {
		return nil, err
	}
	if o.ssh == nil {
		return nil, cay.Errorf(cay.Unsupported, "this server has no SSH")
	}
	return shells{
		info:     cayv1.SSHServer{HostKey: o.ssh.HostKey(), Listen: pointer(o.sshAt)},
		upgraded: upgraded{to: "ssh", asked: value(r.Params.Upgrade, ""), serve: o.whileKeyed(who, func(c net.Conn) { o.ssh.ServeTrusted(c, who) })},
	}, nil
}

// shells is the answer of ConnectSSH.
type shells struct {
	info cayv1.SSHServer
	upgraded
}

// VisitConnectSSHResponse answers.
func (s shells) VisitConnectSSHResponse(w http.ResponseWriter) error {
	if s.asked != "" {
		return s.visit(w)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Add("Vary", "Upgrade")
	return json.NewEncoder(w).Encode(s.info)
}

// ConnectPort joins the connection to a port of a sandbox.
func (o own) ConnectPort(ctx context.Context, r cayv1.ConnectPortRequestObject) (cayv1.ConnectPortResponseObject, error) {
	id, port := sandboxID(r.SandboxID), int(r.Port)
	if err := callerOf(ctx).May(cay.ExecSandboxes); err != nil {
		return nil, err
	}
	if o.dial == nil {
		return nil, cay.Errorf(cay.Unsupported, "this server reaches no ports")
	}
	if err := doors.Closed(port); err != nil {
		return nil, err
	}
	if !strings.EqualFold(value(r.Params.Upgrade, ""), "tcp") && socketOf(ctx).r == nil {
		return nil, cay.Errorf(cay.Invalid, "Upgrade: must be tcp or websocket, over HTTP/1.1")
	}
	if err := o.sandboxes.Enter(ctx, callerOf(ctx), id); err != nil {
		return nil, err
	}
	if start, starts := doors.Forward(port, ""); starts {
		if err := o.mayStart(ctx, id, start, callerOf(ctx).Origins()); err != nil {
			return nil, err
		}
	}
	far, err := o.dial(ctx, id, port)
	if err != nil {
		return nil, err
	}
	if at := socketOf(ctx); at.r != nil {
		return portSocket{at: at, serve: o.whileKeyed(callerOf(ctx), func(c net.Conn) { conns.Join(c, far) }), drop: func() { far.Close() }}, nil
	}
	return portJoin{upgraded{to: "tcp", asked: "tcp", serve: o.whileKeyed(callerOf(ctx), func(c net.Conn) { conns.Join(c, far) }), drop: func() { far.Close() }}}, nil
}

// whileKeyed has a connection end when the key that opened it is removed.
func (s *server) whileKeyed(who cay.Caller, serve func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		ctx, done := s.auth.While(context.Background(), who)
		defer done()
		defer context.AfterFunc(ctx, func() { c.Close() })()
		serve(c)
	}
}

// portJoin is the answer of ConnectPort.
type portJoin struct{ upgraded }

// VisitConnectPortResponse joins.
func (p portJoin) VisitConnectPortResponse(w http.ResponseWriter) error { return p.visit(w) }

// upgraded is the answer of a request whose connection changes its protocol.
type upgraded struct {
	to, asked string
	serve     func(net.Conn) // to its end
	drop      func()         // in its stead; may be nil
}

func (b upgraded) visit(w http.ResponseWriter) error {
	fail := func(err error) error {
		if b.drop != nil {
			b.drop()
		}
		return err
	}
	if !strings.EqualFold(b.asked, b.to) {
		return fail(cay.Errorf(cay.Invalid, "Upgrade: must be %s", b.to))
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fail(cay.Errorf(cay.Invalid, "Upgrade: needs HTTP/1.1"))
	}
	_ = conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+b.to+"\r\n\r\n"); err != nil {
		conn.Close()
		_ = fail(err)
		return nil
	}
	b.serve(&conns.ReadOn{Conn: conn, R: buffered})
	return nil
}
