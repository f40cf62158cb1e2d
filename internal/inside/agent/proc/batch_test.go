package proc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// strokes notes how an answer was written.
type strokes struct {
	*httptest.ResponseRecorder
	writes []string
	fail   error
}

func (s *strokes) Write(p []byte) (int, error) {
	if s.fail != nil {
		return 0, s.fail
	}
	s.writes = append(s.writes, string(p))
	return len(p), nil
}

func (s *strokes) FlushError() error {
	s.writes = append(s.writes, "|")
	return s.fail
}

// stream runs a handler of a stream in a batch.
func stream(s *strokes, work func(ctx context.Context, w http.ResponseWriter)) {
	batched(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		work(r.Context(), w)
	})).ServeHTTP(s, httptest.NewRequest(http.MethodPost, "/", nil))
}

func TestBatchHoldsWhileMoreFollows(t *testing.T) {
	s := &strokes{ResponseRecorder: httptest.NewRecorder()}
	stream(s, func(ctx context.Context, w http.ResponseWriter) {
		send := func(text string, more bool) {
			expect(ctx, more)
			_, _ = io.WriteString(w, "<")
			_, _ = io.WriteString(w, text)
			w.(http.Flusher).Flush()
		}
		send("start", false)
		send("a", true)
		send("b", true)
		send("c", false)
		send("end", true) // what the handler leaves goes out too
	})
	if got, want := strings.Join(s.writes, ","), "<start,|,<a<b<c,|,<end"; got != want {
		t.Errorf("written %s, want %s", got, want)
	}
}

func TestBatchIsBounded(t *testing.T) {
	s := &strokes{ResponseRecorder: httptest.NewRecorder()}
	stream(s, func(ctx context.Context, w http.ResponseWriter) {
		expect(ctx, true)
		for range 10 {
			_, _ = w.Write(make([]byte, batchMax/2))
			w.(http.Flusher).Flush()
		}
	})
	if len(s.writes) != 5 || len(s.writes[0]) != batchMax {
		t.Errorf("%d writes, the first of %d bytes", len(s.writes), len(s.writes[0]))
	}
}

func TestBatchTellsOfFailures(t *testing.T) {
	broken := errors.New("broken")
	s := &strokes{ResponseRecorder: httptest.NewRecorder(), fail: broken}
	stream(s, func(_ context.Context, w http.ResponseWriter) {
		_, _ = io.WriteString(w, "x")
		w.(http.Flusher).Flush()
		if _, err := io.WriteString(w, "y"); !errors.Is(err, broken) {
			t.Errorf("write after a failed flush: %v", err)
		}
	})
}
