package egress

import (
	"bufio"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// Words that a client sent while this host stood still are heard; one that says
// nothing is not waited for any longer than that.
func TestFirstWord(t *testing.T) {
	for name, tt := range map[string]struct {
		after time.Duration
		heard bool
	}{
		"at once":  {0, true},
		"late":     {firstWord + lastWord/2, true},
		"too late": {firstWord + 2*lastWord, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, conn := net.Pipe()
				said := make(chan struct{})
				go func() {
					defer close(said)
					time.Sleep(tt.after)
					client.Write([]byte("word"))
				}()
				defer func() { conn.Close(); client.Close(); <-said }()
				br := bufio.NewReader(conn)
				begun := time.Now()
				head, err := (&flow{conn: conn}).first(br, firstWord)
				if heard := err == nil && head == 'w'; heard != tt.heard || !heard && !isTimeout(err) {
					t.Fatalf("got %q, %v", head, err)
				}
				if took := time.Since(begun); took > firstWord+lastWord {
					t.Errorf("waited for %v", took)
				}
				if !tt.heard {
					return
				}
				rest := make([]byte, 4) // with a deadline of its own
				if n, err := br.Read(rest); string(rest[:n]) != "word" {
					t.Errorf("then %q, %v", rest[:n], err)
				}
			})
		})
	}
}
