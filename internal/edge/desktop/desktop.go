// Package desktop shows the screens of sandboxes to many viewers.
//
// A VNC server in a sandbox has one connection of it, whatever the number of
// viewers: the picture is kept here, and each viewer is served from that, as by a
// VNC server (RFC 6143). So what viewers may do is decided here as well: input of
// one that does not have the control goes nowhere (ADR 84).
//
// The guest is hostile: what it sends is bounded in size and in pace, and no byte of
// it is passed on as it came.
package desktop

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/shares"
)

// Port is where the VNC server of a sandbox listens.
const Port = 5900

const (
	maxViewers = 64 // of one screen, recordings among them
	// maxSide and maxPixels bound a screen, and maxAllPixels those of all
	// screens together; a pixel takes four bytes.
	maxSide      = 8192
	maxPixels    = 4096 * 2304
	maxAllPixels = 64 << 20
	// beginWithin bounds how long the start of a desktop may take.
	beginWithin = time.Minute
)

// Config is what Desktops need. Log may be nil.
type Config struct {
	// Dial connects to a port of a sandbox that runs. The connection breaks when
	// the sandbox is over, paused or rolled back.
	Dial func(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error)
	Log  *slog.Logger
}

// Box is a sandbox that runs; Token is its agent's, if that asks for one.
type Box struct {
	ID    cay.SandboxID
	Team  cay.TeamID
	Token string
}

// Person is the party at a viewer. Name is shown to the others.
type Person struct {
	Name       string
	MayControl bool
}

// Desktops are the screens that are looked at. Its methods are safe for concurrent
// use.
type Desktops struct {
	cfg Config

	mu      sync.Mutex
	screens map[cay.SandboxID]*screen
	pixels  *shares.Bound[cay.TeamID] // of all screens
}

// New returns desktops that are not looked at.
func New(cfg Config) *Desktops {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Desktops{cfg: cfg, screens: map[cay.SandboxID]*screen{}, pixels: shares.New[cay.TeamID](maxAllPixels, 0)}
}

// screen is the desktop of one sandbox, while there are viewers.
type screen struct {
	box    Box
	of     *Desktops
	ctx    context.Context // done, with the cause, when the screen is over
	cancel context.CancelCauseFunc
	ready  chan struct{} // closed when there is a picture
	users  int           // guarded by of.mu

	out  sync.Mutex // held while a message goes to the guest
	conn net.Conn   // from ready on

	mu         sync.Mutex
	name       string
	frame      *frame
	packer     packer
	viewers    []*viewer // in the order of their coming
	next       int       // the number of the next one
	controller *viewer   // nil for none
	asking     *viewer   // for the control; nil for none
	asked      *time.Timer
	lastInput  time.Time
	keys       map[uint32]bool // that the controller holds down
	pointer    [5]byte         // its buttons and where it is
	version    int             // of all that viewers are told of each other
}

// enter returns the screen of a sandbox, once it has a picture. The caller leaves it.
func (d *Desktops) enter(ctx context.Context, box Box) (*screen, error) {
	d.mu.Lock()
	s := d.screens[box.ID]
	if s == nil {
		s = &screen{box: box, of: d, ready: make(chan struct{}), keys: map[uint32]bool{}, next: 1}
		s.ctx, s.cancel = context.WithCancelCause(context.Background())
		d.screens[box.ID] = s
		go s.run()
	}
	s.users++
	d.mu.Unlock()
	var err error
	select {
	case <-s.ready:
		return s, nil
	case <-s.ctx.Done():
		err = context.Cause(s.ctx)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	d.leave(s)
	return nil, err
}

// errUnwatched ends a screen that has no viewer.
var errUnwatched = cay.Errorf(cay.Unavailable, "no viewer is left")

// leave ends a screen with its last user.
func (d *Desktops) leave(s *screen) {
	d.mu.Lock()
	s.users--
	last := s.users == 0
	if last && d.screens[s.box.ID] == s {
		delete(d.screens, s.box.ID)
	}
	d.mu.Unlock()
	if last {
		s.cancel(errUnwatched)
	}
}

// run follows a screen to its end.
func (s *screen) run() {
	err := s.follow()
	s.of.cfg.Log.Debug("a desktop is over", "sandbox", s.box.ID, "err", err)
	var known *cay.Error
	if !errors.As(err, &known) { // the connection broke, or ended
		err = cay.Errorf(cay.Unavailable, "the desktop of sandbox %s is over", s.box.ID)
	}
	s.cancel(err)
	s.of.mu.Lock()
	if s.of.screens[s.box.ID] == s { // the next viewer begins anew
		delete(s.of.screens, s.box.ID)
	}
	s.of.mu.Unlock()
	s.mu.Lock()
	_ = s.size(0, 0) // it takes nothing
	if s.asked != nil {
		s.asked.Stop()
	}
	s.mu.Unlock()
}

// size gives the screen a picture of a size, which is black. The caller holds s.mu.
func (s *screen) size(w, h int) error {
	if s.frame != nil {
		s.of.pixels.Give(s.box.Team, int64(s.frame.w*s.frame.h))
		s.frame.w, s.frame.h = 0, 0
	}
	if !s.of.pixels.Take(s.box.Team, int64(w*h)) {
		return cay.Errorf(cay.Exhausted, "too many desktops are looked at on this server").WithCode(cay.CodeCapacity)
	}
	seq := uint64(0)
	if s.frame != nil {
		seq = s.frame.seq
	}
	s.frame = newFrame(w, h, seq+1)
	return nil
}

// admit adds a viewer.
func (s *screen) admit(v *viewer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.viewers) >= maxViewers {
		return cay.Errorf(cay.Exhausted, "this desktop has %d viewers already", maxViewers)
	}
	v.id, v.wake = s.next, make(chan struct{}, 1)
	s.next++
	s.viewers = append(s.viewers, v)
	s.told()
	return nil
}

// dismiss removes a viewer, which lets go of the control.
func (s *screen) dismiss(v *viewer) {
	s.mu.Lock()
	s.viewers = slices.DeleteFunc(s.viewers, func(x *viewer) bool { return x == v })
	up := s.without(v)
	s.told()
	s.mu.Unlock()
	s.send(up)
}

// told has every viewer hear what has changed. The caller holds s.mu.
func (s *screen) told() {
	s.version++
	s.wakeAll()
}

// wakeAll has every viewer look for what is new. The caller holds s.mu.
func (s *screen) wakeAll() {
	for _, v := range s.viewers {
		v.rouse()
	}
}
