package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/cay-run/cay/internal/keys/member"
)

// certificateLeast is how long the certificates of a cluster are good at least, before this warns.
const certificateLeast = 60 * 24 * time.Hour

// certificate looks how long the certificates of a member are good.
func certificate(_ context.Context, h host) Check { return certificateAt(h.cfg.Data, time.Now()) }

func certificateAt(data string, now time.Time) Check {
	own, err := member.Open(data)
	switch {
	case err != nil:
		return fail(err.Error(), "")
	case own == nil:
		return ok("this machine is no node of a cluster")
	}
	day := func(t time.Time) string { return t.Format(time.DateOnly) }
	switch left, authority := own.Expires.Sub(now), own.AuthorityExpires.Sub(now); {
	case authority < certificateLeast:
		return warn("the certificate of the cluster's authority expires on "+day(own.AuthorityExpires),
			"without it the nodes do not reach each other: make a new cluster by then (docs/operate/cluster.md, Certificates)")
	case left < certificateLeast:
		return warn(fmt.Sprintf("the certificate of node %s expires on %s", own.Node, day(own.Expires)), "restart the server: it renews the certificate")
	}
	return ok(fmt.Sprintf("the certificate of node %s is good until %s, that of the authority until %s", own.Node, day(own.Expires), day(own.AuthorityExpires)))
}
