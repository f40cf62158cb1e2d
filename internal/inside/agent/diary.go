package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/inside/agent/wire"
)

const (
	// diaryKeeps is how many entries wait for the host, which reads them every
	// few seconds while something happens.
	diaryKeeps = 1024
	diaryText  = 512 // bytes of a text in it
)

// diary lists the events inside since the last /init. The host keeps them all;
// the agent keeps those that the host has not read yet, and the newest before
// those.
type diary struct {
	mu      sync.Mutex
	epoch   string
	last    int64 // the newest number
	entries []guest.DiaryEntry
}

// begin starts a new diary: its reader then has another sandbox, or the same
// one in another incarnation.
func (d *diary) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.epoch, d.last, d.entries = rand.Text(), 0, nil
}

// note adds an entry. Fields are keys and values by turns.
func (d *diary) note(event, level, logger, message string, fields ...string) {
	e := guest.DiaryEntry{At: time.Now().UTC(), Level: level, Logger: logger, Message: short(message), Event: event}
	if len(fields) > 1 {
		e.Fields = make(map[string]string, len(fields)/2)
	}
	for i := 0; i+1 < len(fields); i += 2 {
		e.Fields[fields[i]] = short(fields[i+1])
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	e.Seq = d.last
	if len(d.entries) == diaryKeeps {
		d.entries = append(d.entries[:0], d.entries[diaryKeeps/4:]...)
	}
	d.entries = append(d.entries, e)
}

func short(s string) string { return s[:min(len(s), diaryText)] }

// page returns the entries after one, as many as fit an answer.
func (d *diary) page(after int64) guest.Diary {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := guest.Diary{Epoch: d.epoch, Entries: []guest.DiaryEntry{}}
	size := 0
	for _, e := range d.entries {
		if e.Seq <= after {
			continue
		}
		text, _ := json.Marshal(e) // texts and a time
		size += len(text) + 1
		if len(out.Entries) == guest.DiaryPage || size > guest.DiaryReply-1024 {
			out.More = true
			break
		}
		out.Entries = append(out.Entries, e)
	}
	return out
}

// serveDiary answers the host.
func (a *Agent) serveDiary(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
	if err != nil {
		wire.Error(w, http.StatusBadRequest, "after: is no number")
		return
	}
	writeJSON(w, a.diary.page(after))
}

// Log is the agent's log, whose warnings and errors reach the sandbox's.
func (a *Agent) Log() *slog.Logger { return a.log }

// diaryHandler copies warnings and errors of a log into the diary.
type diaryHandler struct {
	slog.Handler
	diary  *diary
	fields []string // of all its records
}

// Enabled lets warnings through, whatever the log wants.
func (h diaryHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.Handler.Enabled(ctx, level)
}

// Handle logs a record.
func (h diaryHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		level := "warn"
		if r.Level >= slog.LevelError {
			level = "error"
		}
		fields := slices.Clone(h.fields)
		r.Attrs(func(a slog.Attr) bool {
			if a.Key != "stack" {
				fields = append(fields, a.Key, a.Value.String())
			}
			return len(fields) < 16
		})
		h.diary.note("", level, "agent", r.Message, fields...)
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs keeps the diary.
func (h diaryHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	fields := slices.Clone(h.fields)
	for _, a := range attrs {
		fields = append(fields, a.Key, a.Value.String())
	}
	return diaryHandler{h.Handler.WithAttrs(attrs), h.diary, fields}
}

// WithGroup keeps the diary.
func (h diaryHandler) WithGroup(name string) slog.Handler {
	return diaryHandler{h.Handler.WithGroup(name), h.diary, h.fields}
}
