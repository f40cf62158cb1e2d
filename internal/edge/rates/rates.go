// Package rates bounds how many requests a second teams send: a bucket of tokens
// for each team and class of requests, in memory. A restart begins with full
// buckets.
package rates

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/cay-run/cay"
)

// Class is a kind of requests that have a rate in common.
type Class int

// The classes. Free requests have no rate.
const (
	Free   Class = iota
	Create       // starts sandboxes: creates, forks and resumes
	Write        // changes something else
	Read
	classes
)

// String names the class.
func (c Class) String() string { return [...]string{"free", "create", "write", "read"}[c] }

// limits are the names of a class's rate and burst.
var limits = [classes][2]cay.Limit{
	Create: {cay.LimitCreates, cay.LimitCreateBurst},
	Write:  {cay.LimitWrites, cay.LimitWriteBurst},
	Read:   {cay.LimitReads, cay.LimitReadBurst},
}

// State is what a request finds.
type State struct {
	Bounded   bool // false: there is no rate, and the rest is zero
	Allowed   bool
	Burst     int           // the most tokens that the bucket has
	Remaining int           // tokens that are left
	Reset     time.Duration // until the bucket is full
	Wait      time.Duration // until there is a token again, where the request is refused
}

// Limiter has the buckets of all teams. A bucket that is full again is forgotten:
// a new one is the same.
type Limiter struct {
	of func(cay.TeamID) cay.TeamLimits

	mu      sync.Mutex
	buckets map[key]*rate.Limiter
	looked  time.Time // for full buckets
}

type key struct {
	team  cay.TeamID
	class Class
}

// forgetEvery is how often full buckets are looked for.
const forgetEvery = time.Minute

// New returns a limiter by the limits that teams have at each moment.
func New(of func(cay.TeamID) cay.TeamLimits) *Limiter {
	return &Limiter{of: of, buckets: make(map[key]*rate.Limiter)}
}

// Take takes a token for a request of a team.
func (l *Limiter) Take(team cay.TeamID, class Class) State {
	perSecond, burst := l.limit(team, class)
	if perSecond == 0 {
		return State{Allowed: true}
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucket(key{team, class}, perSecond, burst, now)
	s := State{Bounded: true, Allowed: b.AllowN(now, 1), Burst: burst}
	tokens := b.TokensAt(now)
	s.Remaining = max(0, int(math.Floor(tokens)))
	s.Reset = inTime(float64(burst)-tokens, perSecond)
	if !s.Allowed {
		s.Wait = inTime(1-tokens, perSecond)
	}
	return s
}

// Owe takes n more tokens for what a request asks for besides itself, at most a
// bucket full of them. It refuses nothing: later requests wait for them.
func (l *Limiter) Owe(team cay.TeamID, class Class, n int) {
	perSecond, burst := l.limit(team, class)
	if n <= 0 || perSecond == 0 {
		return
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bucket(key{team, class}, perSecond, burst, now).ReserveN(now, min(n, burst))
}

func (l *Limiter) limit(team cay.TeamID, class Class) (perSecond int64, burst int) {
	if class == Free {
		return 0, 0
	}
	all := l.of(team)
	perSecond = all[limits[class][0]]
	most := all[limits[class][1]]
	if most == 0 {
		most = perSecond
	}
	return perSecond, int(min(most, math.MaxInt32))
}

// bucket finds or makes a bucket of a size. The caller holds l.mu.
func (l *Limiter) bucket(k key, perSecond int64, burst int, now time.Time) *rate.Limiter {
	if now.Sub(l.looked) >= forgetEvery {
		l.looked = now
		for k, b := range l.buckets {
			if b.TokensAt(now) >= float64(b.Burst()) {
				delete(l.buckets, k)
			}
		}
	}
	b := l.buckets[k]
	if b == nil || b.Limit() != rate.Limit(perSecond) || b.Burst() != burst { // a changed limit begins anew
		b = rate.NewLimiter(rate.Limit(perSecond), burst)
		l.buckets[k] = b
	}
	return b
}

// inTime is how long it takes until there are so many tokens more.
func inTime(tokens float64, perSecond int64) time.Duration {
	if tokens <= 0 {
		return 0
	}
	return time.Duration(math.Ceil(tokens / float64(perSecond) * float64(time.Second)))
}
