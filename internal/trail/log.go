package trail

import (
	"context"
	"io"
	"log/slog"
)

// NewLog returns a log: text for people, or JSON for programs, one object a
// line, whose times are in seconds. Each line has the id of its request.
func NewLog(w io.Writer, json bool, least slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: least}
	if !json {
		return slog.New(Logs(slog.NewTextHandler(w, options)))
	}
	options.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.Float64Value(a.Value.Duration().Seconds())
		}
		return a
	}
	return slog.New(Logs(slog.NewJSONHandler(w, options)))
}

// logs puts the request's id on lines.
type logs struct{ slog.Handler }

// Logs returns a handler that puts the id of the context's request on each
// line. One that does is returned as it is.
func Logs(h slog.Handler) slog.Handler {
	if _, does := h.(logs); does {
		return h
	}
	return logs{h}
}

func (l logs) Handle(ctx context.Context, line slog.Record) error {
	if r := Of(ctx); r != nil {
		line.AddAttrs(slog.String("request", r.Request))
	}
	return l.Handler.Handle(ctx, line)
}

func (l logs) WithAttrs(attrs []slog.Attr) slog.Handler { return logs{l.Handler.WithAttrs(attrs)} }
func (l logs) WithGroup(name string) slog.Handler       { return logs{l.Handler.WithGroup(name)} }
