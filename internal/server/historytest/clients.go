package historytest

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

// Port is where a guest has a value in its memory, that PUT sets and GET reads.
const Port = "8000"

// Fronts are the nodes that clients talk to; a server that starts anew may have another
// address.
type Fronts struct {
	mu  sync.RWMutex
	all map[int]Front
}

// Front is one of them.
type Front struct {
	API  *client.Client
	HTTP *http.Client // for requests into sandboxes
}

// Set says where a node answers.
func (f *Fronts) Set(i int, front Front) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[int]Front{}
	}
	f.all[i] = front
}

func (f *Fronts) any() Front {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n := rand.IntN(len(f.all))
	for _, front := range f.all {
		if n--; n < 0 {
			return front
		}
	}
	panic("no fronts")
}

// answer is what an error of the API says.
func answer(err error) Said {
	switch cay.KindOf(err) {
	case cay.NotFound:
		return Said{Clear: true, Gone: true}
	case cay.Conflict:
		return Said{Clear: true, Busy: true}
	}
	return Said{Clear: err == nil, again: cay.KindOf(err) == cay.Unavailable && !broken(err), none: refused(err), err: err}
}

// refused says that no connection was made: a client asks another node.
func refused(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// broken says that a request was on its way when its connection ended.
func broken(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op) && op.Op != "dial"
}

// do makes one call of a client.
func (f Front) do(ctx context.Context, id string, c Act) Said {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	switch c.What {
	case "pause":
		return answer(f.API.PauseDurably(ctx, id, false))
	case "checkpoint":
		_, err := f.API.Checkpoint(ctx, id, "", "")
		return answer(err)
	case "connect":
		_, err := f.API.Connect(ctx, id, time.Hour)
		return answer(err)
	case "kill":
		return answer(f.API.Kill(ctx, id))
	case "info":
		info, err := f.API.Info(ctx, id)
		s := answer(err)
		s.Value = info.State
		return s
	}
	return f.enter(ctx, id, c)
}

// notRunning is what a front answers for a sandbox that is paused or over.
const notRunning = "The sandbox was not found"

// enter makes a request into a sandbox.
func (f Front) enter(ctx context.Context, id string, c Act) Said {
	method, body := http.MethodGet, io.Reader(http.NoBody)
	if c.What == "write" {
		method, body = http.MethodPut, strings.NewReader(c.Value)
	}
	r, err := http.NewRequestWithContext(ctx, method, f.API.URL()+"/", body)
	if err != nil {
		return Said{err: err}
	}
	r.Header.Set("E2b-Sandbox-Id", id)
	r.Header.Set("E2b-Sandbox-Port", Port)
	resp, err := f.HTTP.Do(r)
	if err != nil {
		return Said{again: refused(err), none: refused(err), err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err == nil && resp.StatusCode == http.StatusBadGateway && strings.Contains(string(text), notRunning):
		return Said{Clear: true, Busy: true}
	case err == nil && resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("%d %s", resp.StatusCode, text)
	}
	return Said{Clear: err == nil, Value: string(text), again: resp.StatusCode == http.StatusServiceUnavailable, err: err}
}

// Clients use sandboxes.
type Clients struct {
	*Histories
	At *Fronts
	// Whats are what they ask of them, each as often as it stands there.
	Whats []string
	// Most is how many sandboxes they have at once.
	Most int
	// Longest is how many calls of a sandbox there are at most.
	Longest int
	// Own has each client use what it made itself alone.
	Own bool
	// Pace is the time between two calls of a client.
	Pace time.Duration
	// Patience is for how long a client asks again where a node says that it may, as
	// SDKs do.
	Patience time.Duration
	// Prepare has a new sandbox keep a value; nil where it does.
	Prepare func(context.Context, *client.Sandbox) error

	seen   sync.Mutex
	failed []string       // calls that had no clear answer in all that time
	why    map[string]int // of answers that were not clear, how often each
}

// Begin has the clients know of no sandbox.
func (c *Clients) Begin() {
	c.Histories, c.failed, c.why = New(), nil, nil
}

// All is what clients can ask of a sandbox.
var All = []string{"write", "write", "write", "read", "read", "read", "pause", "connect", "connect", "info", "info", "checkpoint", "kill"}

// ask makes a call, again for as long as the clients' patience lasts. Each try is a call
// of the history.
func (c *Clients) ask(ctx context.Context, worker int, id string, a Act, patience time.Duration) Said {
	for until := time.Now().Add(patience); ; {
		begun := c.Now()
		said := c.At.any().do(ctx, id, a)
		noted := a
		if a.What == "pause" && said.Gone { // or it was ended while the pause, which was made, waited for its copy
			c.add(id, worker, a, begun, Said{})
			noted.What = "info"
		}
		c.add(id, worker, noted, begun, said)
		if said.Clear {
			return said
		}
		c.note(a.What, said.err)
		if !said.again || time.Now().After(until) {
			if patience > 0 {
				c.fail(fmt.Sprintf("%s of %s: %v", a.What, id, said.err))
			}
			return said
		}
		pause(ctx, time.Second)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (c *Clients) fail(text string) {
	c.seen.Lock()
	defer c.seen.Unlock()
	c.failed = append(c.failed, text)
}

func (c *Clients) note(what string, err error) {
	c.seen.Lock()
	defer c.seen.Unlock()
	if c.why == nil {
		c.why = map[string]int{}
	}
	c.why[fmt.Sprintf("%s: %v", what, err)]++
}

// Failed are the calls that had no clear answer though their clients were patient.
func (c *Clients) Failed() []string {
	c.seen.Lock()
	defer c.seen.Unlock()
	return c.failed
}

// Why says how often each answer was given that was not clear.
func (c *Clients) Why() map[string]int {
	c.seen.Lock()
	defer c.seen.Unlock()
	return c.why
}

// Work is one client, until stop.
func (c *Clients) Work(ctx context.Context, worker int, stop <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-time.After(c.Pace):
		}
		open := c.open(worker, c.Own)
		if len(open) == 0 || len(open) < c.Most && rand.IntN(6) == 0 {
			c.Create(ctx, worker)
			continue
		}
		id, a := open[rand.IntN(len(open))], Act{What: c.Whats[rand.IntN(len(c.Whats))]}
		if a.What == "write" {
			a.Value = fmt.Sprint(worker, ".", n)
		}
		c.ask(ctx, worker, id, a, c.Patience)
		if c.fill(id, c.Longest) {
			c.ask(ctx, worker, id, Act{What: "kill"}, c.Patience)
		}
	}
}

// Create makes a sandbox. A create without an answer is asked again, and makes none twice.
func (c *Clients) Create(ctx context.Context, worker int) {
	o := client.CreateOptions{Timeout: time.Hour, ResumeOnHostLoss: rand.IntN(2) == 0, IdempotencyKey: crand.Text()}
	for until := time.Now().Add(max(c.Patience, 10*time.Second)); ; pause(ctx, time.Second) {
		box, err := c.At.any().API.Create(ctx, o)
		if err == nil && c.Prepare != nil {
			err = c.Prepare(ctx, box)
		}
		if err == nil {
			c.made(box.ID, worker, o.ResumeOnHostLoss)
			return
		}
		c.note("create", err)
		if s := answer(err); time.Now().After(until) || !s.again && c.Patience > 0 {
			if c.Patience > 0 {
				c.fail(fmt.Sprintf("create: %v", err))
			}
			return
		}
	}
}

// End asks for each sandbox once more and ends it; what is wrong with it.
func (c *Clients) End(ctx context.Context, patience time.Duration) (wrong []string) {
	var mu sync.Mutex
	var all sync.WaitGroup
	turns := make(chan struct{}, 4)
	for _, id := range c.IDs() {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			if err := c.end(ctx, id, patience); err != nil {
				mu.Lock()
				defer mu.Unlock()
				wrong = append(wrong, err.Error())
			}
		})
	}
	all.Wait()
	return wrong
}

func (c *Clients) end(ctx context.Context, id string, patience time.Duration) error {
	for _, what := range []string{"info", "connect", "read", "kill"} {
		said := c.ask(ctx, -1, id, Act{What: what}, patience)
		code := cay.CodeOf(said.err)
		if !said.Clear && (code == cay.CodeNotReplicated || code == cay.CodeLost) && c.unkept(id) {
			c.ask(ctx, -1, id, Act{What: "kill"}, patience)
			break
		}
		if !said.Clear {
			return fmt.Errorf("after the faults sandbox %s gives no answer to %s: %w", id, what, said.err)
		}
		if said.Gone {
			break
		}
	}
	end, err := c.At.any().API.End(ctx, id)
	for until := time.Now().Add(patience); err != nil && time.Now().Before(until); {
		pause(ctx, time.Second)
		end, err = c.At.any().API.End(ctx, id)
	}
	if err != nil || end.Reason != string(cay.CauseAsked) && end.Reason != string(cay.CauseHostLost) {
		return fmt.Errorf("the end of sandbox %s: %+v, %w", id, end, err)
	}
	return nil
}
