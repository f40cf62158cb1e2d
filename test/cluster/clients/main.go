// Clients use sandboxes of a cluster while test/cluster/chaos.py has its nodes fail, and
// judge what they were answered. It reads one line from its standard input for each
// thing to do, and answers with one:
//
//	begin    with new sandboxes
//	fault    a fault begins
//	lose     it may take along what runs
//	count    lists the sandboxes
//	rest     no more calls; those that are under way end
//	check    ends all sandboxes, and judges the histories
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/historytest"
)

// memory is a server in a sandbox that has a value in its memory alone.
const memory = `
import http.server
class Memory(http.server.BaseHTTPRequestHandler):
    value = b""
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(Memory.value)))
        self.end_headers()
        self.wfile.write(Memory.value)
    def do_PUT(self):
        Memory.value = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("0.0.0.0", ` + historytest.Port + `), Memory).serve_forever()
`

func main() {
	fronts := flag.String("fronts", "", "addresses of nodes, with a comma between them")
	workers := flag.Int("workers", 4, "")
	idle := flag.Int("idle", 0, "sandboxes that are asked at the end alone")
	load := historytest.Clients{}
	flag.IntVar(&load.Most, "most", 12, "sandboxes at once")
	flag.BoolVar(&load.Own, "own", false, "each client uses what it made itself alone")
	flag.DurationVar(&load.Pace, "pace", 20*time.Millisecond, "between two calls of a client")
	flag.DurationVar(&load.Patience, "patience", 0, "for how long clients ask again where a node says that they may")
	flag.IntVar(&load.Longest, "longest", historytest.Longest, "calls after which a sandbox is ended")
	whats := flag.String("whats", strings.Join(historytest.All, ","), "what clients ask")
	flag.Parse()
	transport := http.DefaultTransport.(*http.Transport)
	transport.MaxIdleConnsPerHost = 64
	// A node that is cut off leaves connections that nothing ends.
	transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: 4 * time.Second, PingTimeout: 4 * time.Second}
	load.Whats, load.Prepare = strings.Split(*whats, ","), prepare
	at, err := reach(strings.Split(*fronts, ","))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	load.At = at
	serve(&load, *workers, *idle)
}

// reach makes clients of nodes, with the key and the authority of the environment.
func reach(urls []string) (*historytest.Fronts, error) {
	at := &historytest.Fronts{}
	for i, url := range urls {
		cfg := client.FromEnv()
		cfg.APIURL, cfg.SandboxURL, cfg.HTTP = url, url, &http.Client{}
		api, err := client.New(cfg)
		if err != nil {
			return nil, err
		}
		at.Set(i, historytest.Front{API: api, HTTP: cfg.HTTP})
	}
	return at, nil
}

// prepare starts the server in a sandbox, and returns when it listens.
func prepare(ctx context.Context, box *client.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	const start = `nohup setsid python3 -c "$MEMORY" >/tmp/memory.log 2>&1 </dev/null &
for i in $(seq 300); do (: </dev/tcp/127.0.0.1/` + historytest.Port + `) 2>/dev/null && exit; sleep 0.05; done; cat /tmp/memory.log; exit 1`
	done, err := box.Run(ctx, client.Command{Path: "bash", Args: []string{"-c", start}, Env: map[string]string{"MEMORY": memory}})
	if err == nil && done.Code != 0 {
		err = fmt.Errorf("the server in sandbox %s: %s, %s", box.ID, done.Status, done.Stdout)
	}
	return err
}

// serve does what the lines of standard input say.
func serve(load *historytest.Clients, workers, idle int) {
	ctx := context.Background()
	var from int64
	var rest func()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var told any = struct{}{}
		switch lines.Text() {
		case "begin":
			load.Begin()
			rest = begin(ctx, load, workers, idle)
		case "fault":
			from = load.Now()
		case "lose":
			load.Lose(from)
		case "rest":
			rest()
		case "count":
			told = append([]string{}, load.IDs()...)
		case "check":
			wrong := load.End(ctx, time.Minute)
			report := load.Check()
			report.Wrong = append(report.Wrong, wrong...)
			told = map[string]any{"report": report, "failed": load.Failed(), "why": load.Why()}
		}
		text, err := json.Marshal(told)
		if err != nil { // of strings and numbers
			panic(err)
		}
		fmt.Println(string(text))
	}
}

// begin starts the clients; the function that it returns ends them.
func begin(ctx context.Context, load *historytest.Clients, workers, idle int) func() {
	stop := make(chan struct{})
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() { load.Work(ctx, worker, stop) })
	}
	group.Go(func() {
		for range idle {
			load.Create(ctx, -1)
		}
	})
	return func() { close(stop); group.Wait() }
}
