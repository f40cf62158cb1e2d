package server

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// A handler that goes on without its client is waited for.
func TestRequestsAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r requests
		ended := false
		h := r.count(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			time.Sleep(time.Minute)
			ended = true
		}))
		go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/", nil))
		synctest.Wait()
		told := 0
		r.wait(time.Hour, func(n int) { told = n })
		if !ended || told != 1 {
			t.Errorf("ended: %v, told of %d", ended, told)
		}
		r.wait(time.Hour, func(n int) { t.Errorf("waits for %d when there are none", n) })
		go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/", nil))
		synctest.Wait()
		begun := time.Now()
		r.wait(time.Second, func(int) {})
		if time.Since(begun) != time.Second {
			t.Errorf("waited %s, and no longer than a second was asked for", time.Since(begun))
		}
		time.Sleep(time.Minute)
	})
}
