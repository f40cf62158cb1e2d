package server_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// cutting is a connection that breaks after so many bytes of both directions.
type cutting struct {
	net.Conn
	left atomic.Int64
	cut  *atomic.Bool
}

var errCut = errors.New("the connection was cut")

func (c *cutting) end() error {
	c.cut.Store(true)
	return errors.Join(errCut, c.Close())
}

func (c *cutting) pass(p []byte, way func([]byte) (int, error)) (int, error) {
	left := c.left.Load()
	if left <= 0 {
		return 0, c.end()
	}
	n, err := way(p[:min(int64(len(p)), left)])
	if c.left.Add(-int64(n)) <= 0 && n < len(p) && err == nil {
		err = c.end()
	}
	return n, err
}

func (c *cutting) Read(p []byte) (int, error)  { return c.pass(p, c.Conn.Read) }
func (c *cutting) Write(p []byte) (int, error) { return c.pass(p, c.Conn.Write) }

// cutAt is a client of a front whose connections break after a random number of bytes: in
// the request, before the answer, in it, or after it.
func cutAt(t *testing.T, w *servertest.World) (api *client.Client, cut *atomic.Bool) {
	t.Helper()
	cut = &atomic.Bool{}
	dial := func(ctx context.Context, network, at string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, at)
		if err != nil {
			return nil, err
		}
		c := &cutting{Conn: conn, cut: cut}
		c.left.Store(rand.Int64N(2000))
		return c, nil
	}
	api, err := client.New(client.Config{APIKey: w.Key, APIURL: w.URL(), HTTP: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}})
	if err != nil {
		t.Fatal(err)
	}
	return api, cut
}

// Creates are sent three times each, to three fronts at about the same time, and their
// connections break at random: there is one sandbox of each key, whichever answer is read,
// and no instance without a record.
func TestRepeatedCreates(t *testing.T) {
	creates := longRun(t, "CLUSTER_CREATES")
	c := servertest.StartCluster(t, 3, servertest.Steady)
	c.AwaitReady(3)
	ctx := t.Context()
	var next, cuts atomic.Int64
	var workers sync.WaitGroup
	var mu sync.Mutex
	made := map[string]string{} // the keys of sandboxes
	for range 8 {
		workers.Go(func() {
			for n := next.Add(1); n <= int64(creates); n = next.Add(1) {
				o := client.CreateOptions{Timeout: time.Hour, IdempotencyKey: fmt.Sprint("create ", n)}
				ids := make([]string, 3)
				var sends sync.WaitGroup
				for i := range ids {
					sends.Go(func() {
						time.Sleep(rand.N(20 * time.Millisecond))
						api, cut := cutAt(t, c.Nodes[i])
						box, err := api.Create(ctx, o)
						switch {
						case err == nil:
							ids[i] = box.ID
						case cut.Load():
							cuts.Add(1)
						case cay.CodeOf(err) != cay.CodeKeyInProgress && cay.KindOf(err) != cay.Unavailable:
							t.Errorf("create %d at front %d: %v", n, i, err)
						}
					})
				}
				sends.Wait()
				box, err := c.Nodes[n%3].Client().Create(ctx, o)
				for begun := time.Now(); cay.KindOf(err) == cay.Unavailable && time.Since(begun) < time.Minute; { // a client asks until it has an answer
					time.Sleep(time.Second)
					box, err = c.Nodes[n%3].Client().Create(ctx, o)
				}
				if err != nil {
					t.Errorf("create %d in the end: %v", n, err)
					continue
				}
				for i, id := range ids {
					if id != "" && id != box.ID {
						t.Errorf("create %d made sandbox %s at front %d, and %s", n, id, i, box.ID)
					}
				}
				mu.Lock()
				if other, there := made[box.ID]; there {
					t.Errorf("creates %q and %q made one sandbox", other, o.IdempotencyKey)
				}
				made[box.ID] = o.IdempotencyKey
				mu.Unlock()
				if n%100 != 0 { // some stay, as many as a machine in memory has room for
					if err := c.Nodes[(n+1)%3].Client().Kill(ctx, box.ID); err != nil {
						t.Errorf("the end of sandbox %s: %v", box.ID, err)
					}
				}
			}
		})
	}
	workers.Wait()
	rowsAreInstances(t, c)
	ran := map[string]bool{}
	for e, err := range c.Nodes[0].Client().Events(ctx, client.EventOptions{Type: string(cay.SandboxRunning)}) {
		if err != nil {
			t.Fatal(err)
		}
		ran[e.SandboxID] = true
	}
	if len(made) != creates || len(ran) != creates {
		t.Errorf("%d creates made %d sandboxes, and %d ran", creates, len(made), len(ran))
	}
	t.Logf("%d creates, %d connections cut of %d", creates, cuts.Load(), 3*creates)
}
