package telemetry

import (
	"time"

	"github.com/cay-run/cay"
)

// ModelAttempt is told of each request to a provider of models.
func (t *Telemetry) ModelAttempt(wire cay.ModelWire, outcome string, took time.Duration) {
	t.modelAttempts.WithLabelValues(string(wire), outcome).Observe(took.Seconds())
}

// ModelRequest is told of each request of a sandbox to models, at its end. A status
// of 0 is of an answer that was broken off.
func (t *Telemetry) ModelRequest(wire cay.ModelWire, status int, input, output int64) {
	t.modelRequests.WithLabelValues(string(wire), classOf(status)).Inc()
	t.modelTokens.WithLabelValues(string(wire), "input").Add(float64(input))
	t.modelTokens.WithLabelValues(string(wire), "output").Add(float64(output))
}
