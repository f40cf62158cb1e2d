package front

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/cay-run/cay"
)

// mostAsked bounds what nodes ask each other for, and the answers, in bytes.
const mostAsked = 4 << 20

// Ask has the node of a sandbox do what this node asks for, or without a sandbox the node
// with the best place for a template, as a client's request would come to it. The caller
// and Config.Asked understand the text. No node gets it that another one may have begun
// with; the error is that of the node.
func (f *Front) Ask(ctx context.Context, id cay.SandboxID, template string, what []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://node/", http.NoBody)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "cannot ask a node")
	}
	r.ProtoMajor, r.ProtoMinor = 2, 0 // many share a connection
	r.Header.Set(hopAsk, "1")
	t := &trip{front: f, in: r, whole: what, kind: toSandbox, sandbox: id, asked: asked{Template: template}}
	if id == "" {
		t.kind = toPlace
	}
	if err := t.resolve(ctx, false); err != nil {
		return nil, err
	}
	for {
		resp, err := t.reach(func() *http.Request { return r })
		if err != nil {
			return nil, err
		}
		if resp != nil {
			return answered(resp, t.node)
		}
		if t.kind != toPlace {
			return f.cfg.Asked(ctx, what)
		}
		out, err := f.cfg.Asked(cay.WithElsewhere(ctx), what)
		if cay.KindOf(err) != cay.Unavailable || !t.instead(cay.CodeOf(err)) {
			return out, err
		}
	}
}

// refused is the error of a node in an answer between nodes.
type refused struct {
	Kind      cay.Kind
	Code      string `json:"error_code"` // as in the API: trip.again reads it
	Msg, Hint string
}

func failAsked(w http.ResponseWriter, err error) {
	out := refused{Kind: cay.KindOf(err), Msg: "internal error"}
	var ours *cay.Error
	switch {
	case errors.As(err, &ours):
		out.Code, out.Msg, out.Hint = ours.Code, ours.Msg, ours.Hint
	case out.Kind == cay.Unavailable:
		out.Msg = "it was not done in time"
	}
	body, _ := json.Marshal(out)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(cay.StatusOf(err))
	_, _ = w.Write(body)
}

// answered reads what a node says.
func answered(resp *http.Response, node cay.NodeID) ([]byte, error) {
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, mostAsked))
	if err != nil {
		return nil, errBroke(node)
	}
	if resp.StatusCode == http.StatusOK {
		return text, nil
	}
	var why refused
	if json.Unmarshal(text, &why) != nil || why.Kind == "" { // the front refuses there, or an older Cay
		return nil, cay.Errorf(cay.Unavailable, "node %s answers %d", node, resp.StatusCode).WithCode(cmp.Or(codeOf(text), cay.CodeNodeAway))
	}
	return nil, &cay.Error{Kind: why.Kind, Code: why.Code, Msg: why.Msg, Hint: why.Hint}
}

// answerAsked does what a member asks for.
func (f *Front) answerAsked(w http.ResponseWriter, r *http.Request) {
	what, err := io.ReadAll(io.LimitReader(r.Body, mostAsked))
	var out []byte
	if err == nil {
		out, err = f.cfg.Asked(r.Context(), what)
	}
	if err != nil {
		f.cfg.Log.DebugContext(r.Context(), "what a member asks for fails", "err", err)
		failAsked(w, err)
		return
	}
	_, _ = w.Write(out)
}
