package front

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/keys/member"
	"github.com/cay-run/cay/internal/trail"
)

// Server serves the other members.
func (f *Front) Server(handler http.Handler) *http.Server {
	s := &http.Server{
		Handler: f.fromMember(handler), ReadHeaderTimeout: time.Minute, IdleTimeout: 10 * time.Minute,
		Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 2048}, ErrorLog: slog.NewLogLogger(f.cfg.Log.Handler(), slog.LevelDebug),
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.ConnContext = withConn
	s.TLSConfig = f.cfg.Own.ServerConfig(f.cfg.Members.Admit)
	s.TLSConfig.NextProtos = []string{"h2", "http/1.1"}
	return s
}

type hopKey struct{}

// hop is what a member says of a request that it brings.
type hop struct {
	kind    string
	sandbox cay.SandboxID
	version int64      // of toTake
	from    cay.NodeID // the member
	shell   cay.TeamID // of a connection that is to become SSH
	by      []cay.Origins
	port    int  // of a connection that is to become one to it
	asks    bool // the member asks for itself
	brings  bool // the member asks for the sandbox
}

func isHop(ctx context.Context) bool { return ctx.Value(hopKey{}) != nil }

// fromMember has a request look as it came to the front.
func (f *Front) fromMember(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, sandbox, _ := strings.Cut(r.Header.Get(hopFor), " ")
		if kind == toCopy {
			f.giveCopy(w, r)
			return
		}
		sandbox, version, _ := strings.Cut(sandbox, " ")
		h := hop{kind: kind, sandbox: cay.SandboxID(sandbox), from: member.Peer(r.TLS), shell: cay.TeamID(r.Header.Get(hopShell))}
		if err := json.Unmarshal([]byte(cmp.Or(r.Header.Get(hopBy), "null")), &h.by); err != nil {
			fail(w, cay.Wrap(cay.Internal, err, "a call of a member is damaged"))
			return
		}
		h.port, _ = strconv.Atoi(r.Header.Get(hopPort))
		h.asks, h.brings = r.Header.Get(hopAsk) != "", r.Header.Get(hopBring) != ""
		h.version, _ = strconv.ParseInt(version, 10, 64) // one that is none is no sandbox's
		name, secure := strings.CutPrefix(r.Header.Get(hopName), ":")
		request, trace, _ := strings.Cut(r.Header.Get(hopTrail), " ")
		from, alone := r.Header.Get(hopFrom), r.Header.Get(hopAlone) != ""
		elsewhere := kind == toPlace || r.Header.Get(hopElse) != ""
		for header := range r.Header {
			if strings.HasPrefix(header, hopPrefix) {
				delete(r.Header, header)
			}
		}
		ctx := trail.Carry(r.Context(), request, trace)
		if alone {
			ctx = f.cfg.Console.Entered(ctx)
		}
		if elsewhere {
			ctx = cay.WithElsewhere(ctx)
		}
		r = r.WithContext(context.WithValue(ctx, hopKey{}, h))
		r.RemoteAddr, r.TLS = from, nil
		if secure {
			r.TLS = &tls.ConnectionState{ServerName: name, HandshakeComplete: true, Version: tls.VersionTLS13}
		}
		delete(r.Header, "Expect") // the front's; the server says so when the body is read
		next.ServeHTTP(w, r)
	})
}

// arrived serves what a member brings, if this node is the one that it is for.
func (f *Front) arrived(w http.ResponseWriter, r *http.Request, next http.Handler) {
	h, _ := r.Context().Value(hopKey{}).(hop)
	if !f.cfg.Members.Serves() {
		moved(w)
		return
	}
	switch h.kind {
	case toTake:
		f.take(w, r, h)
		return
	case toRescue:
		f.rescue(w, r, h)
		return
	case toPlace, toAll, toNode:
	case toLead:
		if !f.cfg.Members.Leads() {
			moved(w)
			return
		}
	case toSandbox, toAdopt:
		here, err := f.has(r.Context(), h.sandbox)
		if err != nil {
			fail(w, err)
			return
		}
		if here {
			break
		}
		home, err := f.home(r.Context(), h.sandbox, true)
		if err == nil && h.kind == toAdopt && home.Node != f.cfg.Members.Self() {
			if err = f.cfg.Adopt(r.Context(), h.sandbox); err == nil {
				f.homes.forget(h.sandbox)
				break
			}
		}
		if err != nil && cay.KindOf(err) != cay.NotFound && cay.KindOf(err) != cay.Conflict {
			fail(w, err)
			return
		}
		if err != nil || home.Node != f.cfg.Members.Self() {
			moved(w)
			return
		}
	default:
		moved(w)
		return
	}
	switch {
	case h.shell != "" || h.port != 0:
		f.joined(w, r, h)
		return
	case h.asks:
		f.answerAsked(w, r)
		return
	case h.brings:
		f.give(w, r, h)
		return
	}
	defer func() {
		if v := recover(); v != nil {
			// The server would wait for a body that the front sends when it is asked to.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
			panic(v)
		}
	}()
	// Requests that this node makes for it may be for other nodes: they are no hops.
	next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), hopKey{}, nil)))
}

// moved says that this node is not the one, before anything of the body is read.
func moved(w http.ResponseWriter) {
	w.Header().Set(hopMoved, "1")
	w.WriteHeader(http.StatusMisdirectedRequest)
}
