package doctor

import (
	"context"
	"errors"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// database looks whether records could be kept where the settings say.
func database(ctx context.Context, h host) Check {
	if h.cfg.DatabaseURL == "" {
		return ok("records are in the data directory")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ahead, err := store.ProbePostgres(ctx, store.PostgresConfig{URL: h.cfg.DatabaseURL, Standby: h.cfg.DatabaseStandby})
	switch {
	case err == nil && h.cfg.ClusterAddress != "" && ahead.Abs() > cay.ClockMost:
		return fail("the clock of this machine is "+cay.ClockWords(ahead), "set it, and keep it by chrony or systemd-timesyncd")
	case err == nil:
		return ok("PostgreSQL can keep the records")
	}
	hint := "check CAY_DATABASE_URL"
	var ours *cay.Error
	if errors.As(err, &ours) && ours.Hint != "" {
		hint = ours.Hint
	}
	return fail(err.Error(), hint)
}
