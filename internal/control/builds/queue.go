// Package builds has the queue of the builds that clients ask for: it checks
// them, carries them out, and records what comes of them.
package builds

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/shares"
	"github.com/cay-run/cay/internal/store"
)

// Builder makes templates.
type Builder interface {
	// Build carries one build out and tells what it does. It leaves nothing
	// behind when it fails, but what later builds may use again. An error of
	// a step is a *cay.StepError.
	Build(ctx context.Context, spec cay.BuildSpec, log func(cay.BuildLog)) (cay.BuildResult, error)
	// Has reports whether a snapshot that a build returned is still there.
	Has(id cay.SnapshotID) bool
	// Tidy removes what only snapshots needed that are no more.
	Tidy() error
	// Export returns the file that a template becomes, as a stream.
	Export(ctx context.Context, name string, limits cay.Limits, setup cay.Setup, id cay.SnapshotID) (io.ReadCloser, error)
	// Uploaded reports whether a team's archive for COPY is there; Upload
	// takes one, as a stream.
	Uploaded(team cay.TeamID, hash string) bool
	Upload(ctx context.Context, team cay.TeamID, hash string, archive io.Reader, size int64) error
}

const (
	buildsAtOnce   = 3                // of a server
	buildsOfTeam   = 2                // of them; the last place is for another team
	buildsWaiting  = 256              // of all teams
	buildTries     = 2                // when a snapshot that was to be used again has just gone
	saveWithin     = 10 * time.Minute // to record the end of a build
	messageMost    = 16 << 10
	stoppedMessage = "the server stopped while the template was built"
)

// imageAliases are images that stand for templates that Cay brings, so that what
// was written for E2B builds without a registry.
var imageAliases = map[string]string{
	"e2bdev/base":             "base",
	"e2bdev/code-interpreter": "code-interpreter-v1",
	"e2bdev/desktop":          "desktop",
}

// fallback is the template that stands for an image when no registry can be
// reached, if the builder knows nothing better.
const fallback = "base"

// Node reads the record of a snapshot, wherever its files are.
type Node interface {
	Record(ctx context.Context, id cay.SnapshotID) (cay.Snapshot, error)
}

// Sealer encrypts what builds are made from.
type Sealer interface {
	Seal(plain []byte, place string) string
	Open(text, place string) ([]byte, error)
}

// Config is what a Queue needs. Builder builds templates; nil for a server that
// builds none, which needs no Sealer. NodeID owns the builds that are under way
// here: no other server of that id may run. Reserved are names that no team may
// build under. Log may be nil.
type Config struct {
	Ledger   *ledger.Ledger
	Store    store.Store
	Node     Node
	NodeID   cay.NodeID
	Builder  Builder
	Images   Images // nil keeps none
	Sealer   Sealer
	Reserved []string
	Full     func() bool // the disk is nearly full; nil never is
	Log      *slog.Logger
}

// Queue has the builds that clients ask for, and carries them out. They wait in
// the store: what is in memory is what this server is at.
type Queue struct {
	ledger   *ledger.Ledger
	store    store.Store
	node     Node
	owner    cay.NodeID
	builder  Builder
	images   Images
	sealer   Sealer
	reserved []string
	full     func() bool
	log      *slog.Logger
	waiting  chan struct{} // a build may wait

	mu      sync.Mutex
	running map[cay.BuildID]context.CancelFunc
}

// Open returns the queue of a server and fails the builds that an earlier one
// was at. Run must follow.
func Open(ctx context.Context, cfg Config) (*Queue, error) {
	q := &Queue{
		ledger: cfg.Ledger, store: cfg.Store, node: cfg.Node, owner: cfg.NodeID, builder: cfg.Builder, images: cfg.Images, sealer: cfg.Sealer,
		reserved: cfg.Reserved, full: cfg.Full, log: cfg.Log,
		waiting: make(chan struct{}, 1), running: make(map[cay.BuildID]context.CancelFunc),
	}
	if q.full == nil {
		q.full = func() bool { return false }
	}
	if q.log == nil {
		q.log = slog.New(slog.DiscardHandler)
	}
	return q, q.endLost(ctx, func(one store.QueuedBuild) bool { return one.Owner == q.owner })
}

func errStarted(b cay.Build) error {
	if b.State == cay.BuildBuilding {
		return cay.Errorf(cay.Conflict, "build %s is under way already", b.ID).WithHint("read its status until it is ready")
	}
	return cay.Errorf(cay.Invalid, "build %s is not waiting to be started: it is over", b.ID).WithHint("request another one")
}

// StartBuild starts a build that RequestBuild recorded. It is building when
// StartBuild returns.
func (q *Queue) StartBuild(ctx context.Context, who cay.Caller, template string, id cay.BuildID, start BuildStart) error {
	if err := who.May(cay.WriteTemplates); err != nil {
		return err
	}
	if err := start.check(); err != nil {
		return err
	}
	b, err := q.ownBuild(ctx, who.Team, template, id)
	if err != nil {
		return err
	}
	if b.State != cay.BuildWaiting {
		return errStarted(b)
	}
	if start.FromTemplate != "" && who.Bounds != nil {
		base, err := q.ledger.FindTemplate(ctx, who.Team, start.FromTemplate)
		if err == nil {
			err = q.ledger.MayStart(ctx, who, base.ID)
		}
		if err != nil {
			return err
		}
	}
	if q.builder == nil || q.sealer == nil {
		return errNoBuilder()
	}
	if start.Volumes, err = q.volumesOf(ctx, who, start); err != nil {
		return err
	}
	if err := q.enqueue(ctx, who, b, start); err != nil {
		return err
	}
	q.signal()
	return nil
}

func errNoBuilder() error {
	return cay.Errorf(cay.Unsupported, "this server builds no templates")
}

// enqueue has a build wait, if its team may have another one.
func (q *Queue) enqueue(ctx context.Context, who cay.Caller, b cay.Build, start BuildStart) error {
	plain, err := json.Marshal(start)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "encode a build")
	}
	sealed := q.sealer.Seal(plain, placeOf(b.ID))
	return q.ledger.Do(ctx, who, "build.started", string(b.ID), func(tx store.Store) error {
		b, err := tx.Build(ctx, b.Team, b.ID)
		if err != nil {
			return err
		}
		if b.State != cay.BuildWaiting { // another request has just started it
			return errStarted(b)
		}
		if err := q.hasRoom(ctx, tx, b.Team); err != nil {
			return err
		}
		b.State, b.UpdatedAt = cay.BuildBuilding, ledger.Now()
		if err := tx.PutBuild(ctx, b); err != nil {
			return err
		}
		return tx.QueueBuild(ctx, b, sealed, start.same(b))
	}, "template", string(b.Template))
}

// placeOf is where the request of a build is sealed for.
func placeOf(id cay.BuildID) string { return "build " + string(id) }

// hasRoom refuses one more build than a team, or all teams, may have under way.
func (q *Queue) hasRoom(ctx context.Context, tx store.Store, team cay.TeamID) error {
	all, err := tx.QueuedBuilds(ctx)
	if err != nil {
		return err
	}
	own := store.BuildsOf(all, team)
	return q.ledger.Limits(team).AdmitBuild(own, shares.Fits(buildsWaiting, int64(len(all)), int64(own), 1))
}

// ownBuild finds a build of a team's own template.
func (q *Queue) ownBuild(ctx context.Context, team cay.TeamID, template string, id cay.BuildID) (cay.Build, error) {
	t, err := q.ledger.FindTemplate(ctx, team, template)
	if err != nil {
		return cay.Build{}, err
	}
	if t.Team != team {
		return cay.Build{}, ledger.OtherTeam(template)
	}
	b, err := q.store.Build(ctx, team, id)
	if err == nil && b.Template != t.ID {
		err = cay.Errorf(cay.NotFound, "")
	}
	if cay.KindOf(err) == cay.NotFound {
		return b, cay.Errorf(cay.NotFound, "build %.80q of template %q not found", string(id), template)
	}
	return b, err
}

// LogQuery says which lines of a build's log to read.
type LogQuery = store.BuildLogQuery

// Build returns a build and a part of its log.
func (q *Queue) Build(ctx context.Context, who cay.Caller, template string, part LogQuery) (cay.Build, []cay.BuildLog, error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return cay.Build{}, nil, err
	}
	// The state first: what is ready has all its lines.
	b, err := q.ownBuild(ctx, who.Team, template, part.Build)
	if err != nil {
		return b, nil, err
	}
	lines, err := q.store.BuildLogs(ctx, part)
	return b, lines, err
}

// Uploaded reports whether the archive of a COPY is there already.
func (q *Queue) Uploaded(ctx context.Context, who cay.Caller, template, hash string) (bool, error) {
	if err := who.May(cay.WriteTemplates); err != nil {
		return false, err
	}
	t, err := q.ledger.FindTemplate(ctx, who.Team, template)
	switch {
	case err != nil:
		return false, err
	case t.Team != who.Team:
		return false, ledger.OtherTeam(template)
	case !filesHash.MatchString(hash):
		return false, cay.Errorf(cay.Invalid, "hash: must be 64 hexadecimal digits")
	case q.builder == nil:
		return false, errNoBuilder()
	}
	return q.builder.Uploaded(who.Team, hash), nil
}

// Upload takes the archive of a COPY, of so many bytes, or -1 where that is not
// known. The caller comes by a link that names the team, which may have been
// disabled or removed since.
func (q *Queue) Upload(ctx context.Context, who cay.Caller, hash string, archive io.Reader, size int64) error {
	if err := who.May(cay.WriteTemplates); err != nil {
		return err
	}
	team, err := q.store.Team(ctx, who.Team)
	if err == nil {
		err = team.Open()
	}
	if err != nil {
		return err
	}
	if q.builder == nil || !filesHash.MatchString(hash) {
		return cay.Errorf(cay.Invalid, "hash: must be 64 hexadecimal digits")
	}
	return q.builder.Upload(ctx, who.Team, hash, archive, size)
}
