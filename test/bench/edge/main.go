// Command edge measures the way to a sandbox: with the proxy, straight to the
// sandbox's address, and through another proxy, in turns. Inside it is what is
// asked (-serve).
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

var (
	serve  = flag.String("serve", "", "address to serve at, inside a sandbox")
	host   = flag.String("host", "", "Host of every request")
	turns  = flag.Int("turns", 10, "turns for each way")
	length = flag.Duration("length", 0, "measure requests a second for so long a turn, not the time of one")
	conns  = flag.Int("conns", 16, "connections at once, with -length")
	hold   = flag.Int("hold", 0, "open so many websockets to the first way, say so, and hold them until standard input ends")
)

func main() {
	flag.Parse()
	log.SetFlags(0)
	switch {
	case *serve != "":
		log.Fatal(http.ListenAndServe(*serve, http.HandlerFunc(answer)))
	case *hold > 0:
		if err := holdAll(flag.Arg(0), *hold); err != nil {
			log.Fatal(err)
		}
	default:
		if err := measure(flag.Args()); err != nil {
			log.Fatal(err)
		}
	}
}

// answer says a kilobyte, or becomes a websocket that says nothing.
func answer(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		_, _ = io.WriteString(w, strings.Repeat("x", 1024))
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	go func() {
		var b [1]byte
		_, _ = conn.Read(b[:])
		conn.Close()
	}()
}

// measure prints, for each way, one number a turn: milliseconds of a request
// (the median of many), or requests a second.
func measure(ways []string) error {
	out := make([][]float64, len(ways))
	for turn := range *turns + 1 {
		for i, way := range ways {
			n, err := once(way)
			if err != nil {
				return fmt.Errorf("%s: %w", way, err)
			}
			if turn > 0 { // the first turn warms caches
				out[i] = append(out[i], n)
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func once(way string) (float64, error) {
	tr := &http.Transport{MaxIdleConnsPerHost: *conns}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr}
	if *length == 0 {
		return median(c, way, 300)
	}
	var all sync.WaitGroup
	done := make([]int, *conns)
	errs := make([]error, *conns)
	end := time.Now().Add(*length)
	for i := range *conns {
		all.Go(func() {
			for time.Now().Before(end) {
				if errs[i] = get(c, way); errs[i] != nil {
					return
				}
				done[i]++
			}
		})
	}
	all.Wait()
	sum := 0
	for i := range done {
		if errs[i] != nil {
			return 0, errs[i]
		}
		sum += done[i]
	}
	return float64(sum) / length.Seconds(), nil
}

func median(c *http.Client, way string, n int) (float64, error) {
	took := make([]time.Duration, n)
	for i := range took {
		begun := time.Now()
		if err := get(c, way); err != nil {
			return 0, err
		}
		took[i] = time.Since(begun)
	}
	slices.Sort(took)
	return float64(took[n/2].Microseconds()) / 1000, nil
}

func get(c *http.Client, way string) error {
	req, err := http.NewRequest(http.MethodGet, way, nil)
	if err != nil {
		return err
	}
	req.Host = *host
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (n != 1024 || resp.StatusCode != http.StatusOK) {
		err = fmt.Errorf("status %d, %d bytes", resp.StatusCode, n)
	}
	return err
}

func holdAll(way string, n int) error {
	u, err := url.Parse(way)
	if err != nil {
		return err
	}
	for i := range n {
		conn, err := net.Dial("tcp", u.Host)
		if err != nil {
			return fmt.Errorf("after %d: %w", i, err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", *host)
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(line, " 101 ") {
			return fmt.Errorf("after %d: %q, %w", i, line, err)
		}
	}
	fmt.Println("held")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
