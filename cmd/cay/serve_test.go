package main

import (
	"testing"
	"testing/synctest"
	"time"
)

// A server whose records another one has ends in time, whatever it waits for; others take as
// long as they need.
func TestEndAtLast(t *testing.T) {
	for _, tt := range []struct {
		name string
		lost bool
		ends time.Duration // by itself, after it is lost
		want time.Duration // when it is made to end
	}{
		{"lost, and ends by itself", true, 19 * time.Second, 0},
		{"lost, and hangs", true, 2 * time.Hour, 20 * time.Second},
		{"told to end, and takes long", false, 2 * time.Hour, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun, lost := time.Now(), make(chan struct{})
				var ended time.Duration
				stop := endAtLast(lost, lostWithin, func() { ended = time.Since(begun) })
				if tt.lost {
					close(lost)
				}
				time.Sleep(tt.ends)
				stop()
				synctest.Wait()
				if ended != tt.want {
					t.Errorf("it was made to end after %v, want %v", ended, tt.want)
				}
			})
		})
	}
}
