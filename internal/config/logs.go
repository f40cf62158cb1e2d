package config

import (
	"log/slog"

	"github.com/cay-run/cay"
)

// Logs is what the server's log looks like, which goes to its standard error.
type Logs struct {
	// LogFormat is text or json, one object a line; empty is text, or json after
	// --json.
	LogFormat string `yaml:"logFormat"`
	// LogLevel is the least that is logged: debug, info, warn or error; empty is
	// info.
	LogLevel string `yaml:"logLevel"`
}

var logVariables = []Variable{
	{"CAY_LOG_FORMAT", "logFormat", "the log's form: text, or json, one object a line [text]",
		func(c *Config, v string) error { c.LogFormat = v; return nil }},
	{"CAY_LOG_LEVEL", "logLevel", "the least that is logged: debug (each request, and what the node does), info, warn or error [info]",
		func(c *Config, v string) error { c.LogLevel = v; return nil }},
}

// Level is the least that is logged.
func (l Logs) Level() (slog.Level, error) {
	switch l.LogLevel {
	case "debug":
		return slog.LevelDebug, nil
	case "", "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, cay.Errorf(cay.Invalid, "log level %q is not debug, info, warn or error", l.LogLevel)
}

func (l Logs) logProblems() []error {
	_, err := l.Level()
	if l.LogFormat != "" && l.LogFormat != "text" && l.LogFormat != "json" {
		return []error{err, cay.Errorf(cay.Invalid, "log format %q is not text or json", l.LogFormat)}
	}
	return []error{err}
}
