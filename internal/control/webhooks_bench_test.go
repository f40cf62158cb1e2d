package control_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/conns/outside"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/control/controltest"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/control/logbook"
	"github.com/cay-run/cay/internal/control/webhooks"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store/storetest"
)

// BenchmarkWebhooks has 1,000 events a second told to 20 webhooks while a client
// creates and kills 20 sandboxes a second. It reports the median of the creates,
// the memory, and how many requests were sent, beside the same without webhooks
// and without events. The receiver is a process of its own, on the same
// processors.
//
//	go test ./internal/control -run '^$' -bench Webhooks -benchtime 10s
func BenchmarkWebhooks(b *testing.B) {
	for _, way := range []struct {
		name          string
		events, hooks int
	}{{"quiet", 0, 0}, {"events", 1000, 0}, {"twenty", 1000, 20}} {
		b.Run(way.name, func(b *testing.B) {
			url, received := receiverProcess(b)
			w := benchWorld(b)
			for i := range way.hooks {
				name := fmt.Sprint(i)
				_, _, err := w.CreateWebhook(b.Context(), w.who, webhooks.WebhookChange{Name: &name, URL: &url, Events: []string{cay.AllEvents}})
				if err != nil {
					b.Fatal(err)
				}
			}
			stop := w.flood(b, way.events)
			var took []time.Duration
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			before := cpuTime(b)
			from := time.Now()
			for b.Loop() {
				<-tick.C
				at := time.Now()
				s, err := w.Create(b.Context(), w.who, w.spec)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(at))
				if err := w.Kill(b.Context(), w.who, s.ID); err != nil {
					b.Fatal(err)
				}
			}
			seconds := time.Since(from).Seconds()
			cpu := cpuTime(b) - before
			told := stop()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*9/10].Microseconds()), "p90-us")
			b.ReportMetric(float64(told)/seconds, "events/s")
			b.ReportMetric(float64(received())/seconds, "sent/s")
			b.ReportMetric(cpu.Seconds()/seconds, "cpus")
			b.ReportMetric(float64(resident(b))/(1<<20), "MiB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

type bench struct {
	*control.Control
	who  cay.Caller
	spec cay.CreateSpec
	add  func(context.Context, ...cay.Event) error
}

func benchWorld(b *testing.B) *bench {
	ctx := b.Context()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	s := storetest.Open(b, filepath.Join(b.TempDir(), "cay.db"))
	logs, err := logbook.Open(b.TempDir())
	must(err)
	team, _, err := auth.FirstStart(ctx, s)
	must(err)
	tokens, err := auth.NewTokens(make([]byte, 32))
	must(err)
	sealer, err := seal.NewKey(make([]byte, 32))
	must(err)
	c, err := control.Open(ctx, control.Config{
		Store: s, Node: controltest.NewNode(), NodeID: "n", Tokens: tokens, Logs: logs, Sealer: sealer,
		Networks: outside.Networks{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	})
	must(err)
	_, err = c.Publish(ctx, fleet.Publication{
		Team: team.ID, Names: []string{"base"}, Snapshot: "s1", RecipeDigest: "d1", Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024},
	})
	must(err)
	run, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.Run(run) })
	b.Cleanup(func() { cancel(); wg.Wait() })
	return &bench{c, cay.ForTeam(team.ID), cay.CreateSpec{Template: "base", Timeout: time.Hour, Secure: true, Network: cay.DefaultNetwork()}, s.AddEvents}
}

// flood records events, in ticks of ten, until the returned function is called.
func (w *bench) flood(b *testing.B, perSecond int) (stop func() int64) {
	if perSecond == 0 {
		return func() int64 { return 0 }
	}
	var told atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		const each = 10
		tick := time.NewTicker(time.Second * each / time.Duration(perSecond))
		defer tick.Stop()
		for ctx.Err() == nil {
			<-tick.C
			for i := range each {
				e := cay.Event{
					Team: w.who.Team, Sandbox: cay.SandboxID(fmt.Sprintf("i%d", i)), Type: cay.EgressDenied, Reason: cay.ReasonPolicy,
					At: time.Now(), Data: map[string]string{"name": "example.com", "protocol": "tls"},
				}
				if err := w.add(context.Background(), e); err != nil {
					b.Error(err)
					return
				}
				told.Add(1)
			}
		}
	})
	return func() int64 { cancel(); wg.Wait(); return told.Load() }
}

func resident(b *testing.B) int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		b.Fatal(err)
	}
	runtime.KeepAlive(text)
	return pages * int64(os.Getpagesize())
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const receiverVariable = "CAY_BENCH_RECEIVER"

// receiverProcess starts a receiver, and returns how many requests it got.
func receiverProcess(b *testing.B) (url string, received func() int) {
	cmd := exec.Command(os.Args[0], "-test.run", "^TestReceiverProcess$")
	cmd.Env = append(os.Environ(), receiverVariable+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	next := func() string {
		if !lines.Scan() {
			b.Fatal("the receiver ended")
		}
		return lines.Text()
	}
	b.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	return next(), func() (n int) {
		fmt.Fprintln(in)
		if _, err := fmt.Sscan(next(), &n); err != nil {
			b.Fatal(err)
		}
		return n
	}
}

// TestReceiverProcess is the receiver of BenchmarkWebhooks: it tells its address,
// and for each line how many requests it got.
func TestReceiverProcess(t *testing.T) {
	if os.Getenv(receiverVariable) == "" {
		return
	}
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n.Add(1)
	}))
	defer s.Close()
	fmt.Println(strings.TrimSpace(s.URL))
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(n.Load())
	}
}
