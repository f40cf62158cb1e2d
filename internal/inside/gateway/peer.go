package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// revision is what servers are greeted with. One that is older answers with its
// own, and speaks that.
const revision = "2025-11-25"

const (
	// writeTime bounds the wait for a server to read what it is told.
	writeTime = 10 * time.Second
	// maxCalls bounds the requests that one server has at once; others wait.
	maxCalls = 64
)

var (
	errGone = errors.New("it ended before it answered")
	errLong = fmt.Errorf("its answer is longer than %d MiB, which is the most that is passed on: ask it for less, or for a file", maxLine>>20)
)

// peer is the connection to one server on the standard streams of its program.
// It knows JSON-RPC and nothing of what is said: results are the bytes that came.
type peer struct {
	out    *os.File
	notify func(method string, params json.RawMessage)
	junk   func(line []byte) // of what is no message
	turns  chan struct{}

	writing sync.Mutex

	mu      sync.Mutex
	last    int64
	pending map[int64]*pending
	done    chan struct{} // closed when nothing more is read

	broken chan struct{} // closed when there is no use in the server any more
	once   sync.Once
}

// pending is a request that waits for its answer.
type pending struct {
	answer   chan answer
	progress func(json.RawMessage) // may be nil
}

type answer struct {
	result json.RawMessage
	err    error
}

// refusal is the error that a server answered a request with.
type refusal struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (r *refusal) Error() string { return r.Message }

// message is any message of JSON-RPC.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *refusal        `json:"error"`
}

// newPeer returns a peer that reads in, to its end, and writes to out.
func newPeer(in io.Reader, out *os.File, most int, notify func(string, json.RawMessage), junk func([]byte)) *peer {
	p := &peer{
		out: out, notify: notify, junk: junk, turns: make(chan struct{}, maxCalls),
		pending: map[int64]*pending{}, done: make(chan struct{}), broken: make(chan struct{}),
	}
	go p.read(newLines(in, most))
	return p
}

func (p *peer) read(l *lines) {
	for {
		line, long, err := l.next()
		if err != nil {
			break // how its program ended says more
		}
		switch {
		case long != nil:
			p.junk(fmt.Appendf(nil, "a message of %d bytes is dropped", long.length))
			p.deliver(long.id, answer{err: errLong})
		case len(line) > 0:
			p.take(line)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, one := range p.pending {
		one.answer <- answer{err: errGone}
		delete(p.pending, id)
	}
	close(p.done)
}

// take does what one message asks for.
func (p *peer) take(line []byte) {
	var m message
	if line[0] != '{' || json.Unmarshal(line, &m) != nil {
		p.junk(line)
		return
	}
	switch {
	case m.Method == "" && len(m.ID) > 0:
		var id int64
		if json.Unmarshal(m.ID, &id) != nil {
			return // none of ours
		}
		if m.Error != nil {
			p.deliver(id, answer{err: m.Error})
			return
		}
		p.deliver(id, answer{result: m.Result})
	case m.Method == "notifications/progress":
		p.progress(m.Params)
	case len(m.ID) == 0:
		p.notify(m.Method, m.Params)
	default:
		// Without waiting: a server that does not read must not have us not read.
		go p.reply(m)
	}
}

func (p *peer) deliver(id int64, a answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.pending[id]; one != nil {
		one.answer <- a
		delete(p.pending, id)
	}
}

// progress passes a notification to the call that it is of, whose id is its token.
func (p *peer) progress(params json.RawMessage) {
	var of struct {
		Token int64 `json:"progressToken"`
	}
	if json.Unmarshal(params, &of) != nil {
		return
	}
	p.mu.Lock()
	one := p.pending[of.Token]
	p.mu.Unlock()
	if one != nil && one.progress != nil {
		one.progress(params)
	}
}

// reply answers a request of the server. There is no model, no person and no
// directory behind the gateway that it could ask for.
func (p *peer) reply(m message) {
	if m.Method == "ping" {
		_ = p.write(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": struct{}{}})
		return
	}
	_ = p.write(map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": refusal{Code: -32601, Message: "the gateway does not have " + m.Method}})
}

// call makes a request and returns the result as the server wrote it.
func (p *peer) call(ctx context.Context, method string, params map[string]any, progress func(json.RawMessage)) (json.RawMessage, error) {
	select {
	case p.turns <- struct{}{}:
		defer func() { <-p.turns }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.done:
		return nil, errGone
	}
	one := &pending{answer: make(chan answer, 1), progress: progress}
	id, err := p.expect(one)
	if err != nil {
		return nil, err
	}
	if progress != nil {
		params["_meta"] = map[string]any{"progressToken": id}
	}
	if err := p.write(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params}); err != nil {
		p.forget(id)
		return nil, err
	}
	select {
	case a := <-one.answer:
		return a.result, a.err
	case <-ctx.Done():
		p.forget(id)
		_ = p.write(map[string]any{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": map[string]any{"requestId": id}}) // it ends all the same
		return nil, ctx.Err()
	}
}

func (p *peer) expect(one *pending) (id int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		return 0, errGone
	default:
	}
	p.last++
	p.pending[p.last] = one
	return p.last, nil
}

func (p *peer) forget(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pending, id)
}

// write sends a message. A server that does not read it in time is cut off: a
// part of a message may have reached it.
func (p *peer) write(m any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text) // it ends with a new line
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return err
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if err := p.out.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return errGone
	}
	if _, err := p.out.Write(text.Bytes()); err != nil {
		p.giveUp()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errors.New("it does not read what it is told")
		}
		return errGone
	}
	return nil
}

// giveUp says that the server is of no use any more.
func (p *peer) giveUp() { p.once.Do(func() { close(p.broken) }) }

// probe gives a server up that does not answer a ping.
func (p *peer) probe(ctx context.Context, within time.Duration) {
	bounded, stop := context.WithTimeout(ctx, within)
	defer stop()
	var refused *refusal
	if _, err := p.call(bounded, "ping", map[string]any{}, nil); err != nil && !errors.As(err, &refused) {
		p.giveUp()
	}
}

// greet begins the protocol and returns what the server says of itself.
func (p *peer) greet(ctx context.Context, version string) (hello, error) {
	var h hello
	raw, err := p.call(ctx, "initialize", map[string]any{
		"protocolVersion": revision, "capabilities": struct{}{},
		"clientInfo": map[string]string{"name": "mcp-gateway", "version": version},
	}, nil)
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal(raw, &h); err != nil {
		return h, fmt.Errorf("it answers initialize with nonsense: %w", err)
	}
	return h, p.write(map[string]any{"jsonrpc": "2.0", "method": "notifications/initialized"})
}

// hello is the part of a server's greeting that the gateway reads.
type hello struct {
	Capabilities struct {
		Tools     *struct{} `json:"tools"`
		Prompts   *struct{} `json:"prompts"`
		Resources *struct{} `json:"resources"`
	} `json:"capabilities"`
}
