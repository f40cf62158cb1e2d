// Package store keeps Cay's records: teams, keys, templates and sandboxes, in
// SQLite or PostgreSQL. The conformance suite in store/storetest is what every
// implementation passes.
package store

import (
	"context"
	"time"

	"github.com/cay-run/cay"
)

// Store keeps records. All methods are safe for concurrent use; each is one
// transaction, and those that are called within Tx are one together. Every call
// that starts after a write sees it. Times keep millisecond precision and come
// back in UTC.
//
// Errors are *cay.Error: NotFound for a record that is not there or that the
// team may not see, Conflict for a name or id that is taken or a record that
// has changed, NoSpace for a full disk. Cancelling a context leaves the record
// as it was before, or as asked, never between.
type Store interface {
	Teams
	Nodes
	Clusters
	Leads
	Homes
	Accounts
	People
	AccessTokens
	SSHKeys
	TeamLimits
	Logins
	Sessions
	Secrets
	Usage
	Budgets
	Templates
	Tags
	Builds
	BuildQueue
	Sandboxes
	IdempotencyKeys
	Volumes
	Trees
	Events
	Webhooks
	Triggers
	Runs
	Approvals
	Models
	Audits

	// Tx runs f, whose calls of tx are one transaction: all of them count, or
	// none when f fails. A team stays as f reads it until the end of f. f must
	// call nothing of another Store: one write waits for the other. It may run
	// more than once, and returns the error of a call that failed.
	Tx(ctx context.Context, f func(tx Store) error) error
	// Settled is an error while a change may still come to count that no reader sees: its
	// commit waits for a standby, or is on its way. The removal of what no record names
	// calls it first, and reads the records after it.
	Settled(ctx context.Context) error
	// Close lets go of the database. No call may follow.
	Close() error
}

// Nodes are the machines that sandboxes run on.
type Nodes interface {
	// SetDrain records whether a machine is drained, and how.
	SetDrain(ctx context.Context, node cay.NodeID, how cay.Drain) error
	Drain(ctx context.Context, node cay.NodeID) (cay.Drain, error)
	// TakeNode leases a node's name to a machine, by the database's clock, and
	// returns the epoch that this begins: one more each time. Conflict means that
	// another machine has it.
	TakeNode(ctx context.Context, node cay.NodeID, machine string, lease time.Duration) (epoch int64, err error)
	// RenewNode moves the end of the lease of an epoch. ErrTakenOver means that a
	// later one has begun.
	RenewNode(ctx context.Context, node cay.NodeID, epoch int64, lease time.Duration) error
	// LeaveNode ends the lease of an epoch; one that is not the last is no error.
	LeaveNode(ctx context.Context, node cay.NodeID, epoch int64) error
}

// Teams own everything that has a row.
type Teams interface {
	// AddTeam records a team; its id and its name must be new.
	AddTeam(ctx context.Context, team cay.Team) error
	// Teams lists all teams that are not removed, oldest first.
	Teams(ctx context.Context) ([]cay.Team, error)
	// Team finds a team that is not removed.
	Team(ctx context.Context, id cay.TeamID) (cay.Team, error)
	// TeamByName finds a team that is not removed by its exact name.
	TeamByName(ctx context.Context, name string) (cay.Team, error)
	// UpdateTeam replaces a team's name, which must be no other team's, and the
	// time at which it was disabled.
	UpdateTeam(ctx context.Context, team cay.Team) error
	// RemoveTeam marks a team as removed, and makes its name free. The row stays.
	RemoveTeam(ctx context.Context, id cay.TeamID, at time.Time) error
	// RemovedTeams lists the removed teams that are not cleared yet.
	RemovedTeams(ctx context.Context) ([]cay.Team, error)
	// ClearTeam forgets what a removed team had, but for its sandboxes and its
	// templates, which have ends of their own, and for usage, audit and events.
	// Done says that nothing is left to clear, ever.
	ClearTeam(ctx context.Context, id cay.TeamID, done time.Time) error
	// CountTeam counts what a team has.
	CountTeam(ctx context.Context, id cay.TeamID) (TeamCount, error)
}

// TeamCount is how much a team has.
type TeamCount struct{ Running, Paused, Templates, Keys, Secrets, Volumes int }

// Accounts are the keys that open what a team has.
type Accounts interface {
	// AddKey records a key; its id and its hash must be new.
	AddKey(ctx context.Context, key cay.APIKey) error
	// KeyByHash finds the key with that hash, and its team.
	KeyByHash(ctx context.Context, hash [32]byte) (cay.APIKey, cay.Team, error)
	// Key finds a team's key; of any team, for an empty one.
	Key(ctx context.Context, team cay.TeamID, id cay.KeyID) (cay.APIKey, error)
	// Keys lists a team's keys, oldest first.
	Keys(ctx context.Context, team cay.TeamID) ([]cay.APIKey, error)
	// KeysOfPerson lists the ids of the keys, of all teams, that a person made or
	// that were made with those.
	KeysOfPerson(ctx context.Context, person cay.PersonID) ([]cay.KeyID, error)
	// UpdateKey replaces the name and the expiry of a team's key.
	UpdateKey(ctx context.Context, key cay.APIKey) error
	// KeysUsed notes when keys were last used. One that is gone is no error.
	KeysUsed(ctx context.Context, at map[cay.KeyID]time.Time) error
	// RemoveKey removes a team's key.
	RemoveKey(ctx context.Context, team cay.TeamID, id cay.KeyID) error
	// PruneKeys forgets keys that expired before a time, and returns how many.
	PruneKeys(ctx context.Context, before time.Time) (int, error)
}

// People are the human beings who use a server, and their roles in teams.
type People interface {
	// AddPerson records a person, whose id and address must be new.
	AddPerson(ctx context.Context, p cay.Person) error
	// UpdatePerson replaces a person's address, name and the time of being
	// disabled.
	UpdatePerson(ctx context.Context, p cay.Person) error
	Person(ctx context.Context, id cay.PersonID) (cay.Person, error)
	// PersonByEmail finds the person of an address in lower case.
	PersonByEmail(ctx context.Context, email string) (cay.Person, error)
	// People lists all people, by address.
	People(ctx context.Context) ([]cay.Person, error)
	// AddMember records a person's role in a team. Conflict means that there is
	// one already.
	AddMember(ctx context.Context, m cay.Member) error
	SetRole(ctx context.Context, team cay.TeamID, person cay.PersonID, role cay.Role) error
	RemoveMember(ctx context.Context, team cay.TeamID, person cay.PersonID) error
	// Members lists a team's members, in the order of their coming.
	Members(ctx context.Context, team cay.TeamID) ([]cay.Member, error)
	// Memberships lists the teams of a person that are not removed, the first
	// one joined first.
	Memberships(ctx context.Context, person cay.PersonID) ([]cay.Member, error)
}

// AccessTokens stand for people.
type AccessTokens interface {
	// AddAccessToken records a token; its id and its hash must be new.
	AddAccessToken(ctx context.Context, t cay.AccessToken) error
	AccessTokenByHash(ctx context.Context, hash [32]byte) (cay.AccessToken, error)
	// AccessTokens lists a person's tokens, oldest first.
	AccessTokens(ctx context.Context, person cay.PersonID) ([]cay.AccessToken, error)
	RemoveAccessToken(ctx context.Context, person cay.PersonID, id string) error
}

// Logins are how people and programs prove who they are by what others say.
type Logins interface {
	// UseToken records that a token was used, by its digest, and forgets those
	// that are over. Conflict means that it was used before.
	UseToken(ctx context.Context, digest [32]byte, now, until time.Time) error
	// PersonOf finds the person whom an issuer knows by a subject; BindPerson
	// records it: once for each issuer.
	PersonOf(ctx context.Context, issuer, subject string) (cay.PersonID, error)
	BindPerson(ctx context.Context, issuer, subject string, person cay.PersonID) error
	// LoginTeams lists the teams in which a person is by a rule of logins;
	// SetLoginTeams replaces them.
	LoginTeams(ctx context.Context, person cay.PersonID) ([]cay.TeamID, error)
	SetLoginTeams(ctx context.Context, person cay.PersonID, teams []cay.TeamID) error
}

// Sessions are logins of people, keys and the operator. Those that are over may
// still be found.
type Sessions interface {
	// AddSession records a session; its id and its hash must be new.
	AddSession(ctx context.Context, x cay.Session) error
	SessionByHash(ctx context.Context, hash [32]byte) (cay.Session, error)
	Session(ctx context.Context, id cay.SessionID) (cay.Session, error)
	// Sessions lists the sessions of an owner, the newest first.
	Sessions(ctx context.Context, of cay.SessionOwner) ([]cay.Session, error)
	// UseSession notes that a session was used. One that is gone is no error.
	UseSession(ctx context.Context, id cay.SessionID, now time.Time) error
	RemoveSession(ctx context.Context, of cay.SessionOwner, id cay.SessionID) error
	// PruneSessions forgets the sessions that are over.
	PruneSessions(ctx context.Context, now time.Time) error
}

// SSHKeys are the public keys that open a team's sandboxes.
type SSHKeys interface {
	// AddSSHKey records a key of a team that has fewer than most, else Exhausted;
	// its id, and its fingerprint in the team, must be
	// new.
	AddSSHKey(ctx context.Context, key cay.SSHKey, most int) error
	// SSHKeys lists a team's keys, oldest first.
	SSHKeys(ctx context.Context, team cay.TeamID) ([]cay.SSHKey, error)
	// SSHKeyOpens reports whether a team has the key of a fingerprint; SSHKeyOf finds it.
	SSHKeyOpens(ctx context.Context, team cay.TeamID, fingerprint string) (bool, error)
	SSHKeyOf(ctx context.Context, team cay.TeamID, fingerprint string) (cay.SSHKey, error)
	// RemoveSSHKey removes a team's key.
	RemoveSSHKey(ctx context.Context, team cay.TeamID, id cay.SSHKeyID) error
}

// TeamLimits are what teams may have at most, where that is not the server's
// default.
type TeamLimits interface {
	// PutTeamLimits replaces all limits that are set for a team, and records what
	// happened.
	PutTeamLimits(ctx context.Context, team cay.TeamID, limits cay.TeamLimits, events ...cay.Event) error
	// AllTeamLimits returns the limits that are set, of all teams that have any.
	AllTeamLimits(ctx context.Context) (map[cay.TeamID]cay.TeamLimits, error)
}

// Secrets are the values that header rules name, sealed.
type Secrets interface {
	// AddSecret records a secret; its id and its name must be new to the team.
	AddSecret(ctx context.Context, x cay.Secret) error
	// Secret finds a team's secret by id or by exact name.
	Secret(ctx context.Context, team cay.TeamID, ref string) (cay.Secret, error)
	// Secrets lists a team's secrets, oldest first.
	Secrets(ctx context.Context, team cay.TeamID) ([]cay.Secret, error)
	// UpdateSecret replaces a secret's value, metadata and version. Conflict
	// means that the recorded version is not the one before.
	UpdateSecret(ctx context.Context, x cay.Secret) error
	// RemoveSecret removes a team's secret.
	RemoveSecret(ctx context.Context, team cay.TeamID, id cay.SecretID) error
}

// Templates are the starting points of sandboxes.
type Templates interface {
	// AddTemplate records a template with its names; they must be new to the
	// team. PutBuild records the fields that a template has of its builds.
	AddTemplate(ctx context.Context, t cay.Template) error
	// Template finds a template that is the team's own or public.
	Template(ctx context.Context, team cay.TeamID, id cay.TemplateID) (cay.Template, error)
	// TemplateByName finds the team's template of that name, else a public
	// one, the oldest if there are many.
	TemplateByName(ctx context.Context, team cay.TeamID, name string) (cay.Template, error)
	// FindTemplate is Template with what may be an id, else TemplateByName.
	FindTemplate(ctx context.Context, team cay.TeamID, ref string) (cay.Template, error)
	// Templates lists what is the team's own or public, newest first.
	Templates(ctx context.Context, team cay.TeamID) ([]cay.Template, error)
	// CountTemplates counts a team's own, without snapshots and without those of
	// some names.
	CountTemplates(ctx context.Context, team cay.TeamID, but ...string) (int, error)
	// SetPublic says whether other teams may use a team's own template.
	SetPublic(ctx context.Context, team cay.TeamID, id cay.TemplateID, public bool) error
	// RemoveTemplate removes a team's own template with its names, tags, builds
	// and their logs.
	RemoveTemplate(ctx context.Context, team cay.TeamID, id cay.TemplateID) error
}

// Tags are names of a template's builds.
type Tags interface {
	// PutTags points tags to a build, away from others of its template. With
	// the default tag the template starts from it.
	PutTags(ctx context.Context, b cay.Build, tags []string, at time.Time) error
	// RemoveTags removes tags of a template; a tag that it lacks is no error.
	// Without the default tag the template starts from no build.
	RemoveTags(ctx context.Context, template cay.TemplateID, tags []string) error
	// Tags lists the tags of a template by name, TeamTags the tags of all templates of
	// a team.
	Tags(ctx context.Context, template cay.TemplateID) ([]cay.Tag, error)
	TeamTags(ctx context.Context, team cay.TeamID) (map[cay.TemplateID][]cay.Tag, error)
	// TagAssignments lists the times that the tags of a template were pointed
	// to builds that are ready, newest first, the last 200 of each tag. They
	// are removed with their tag.
	TagAssignments(ctx context.Context, template cay.TemplateID) ([]cay.TagAssignment, error)
	TaggedBuild(ctx context.Context, template cay.TemplateID, tag string) (cay.Build, error)
	StartableBuild(ctx context.Context, template cay.TemplateID, id cay.BuildID) (cay.Build, error)
	// BuildsUnderWay and SupersededBuilds, which have lost their tags, come latest first.
	BuildsUnderWay(ctx context.Context, template cay.TemplateID) ([]cay.Build, error)
	SupersededBuilds(ctx context.Context) ([]SupersededBuild, error)
	DropSuperseded(ctx context.Context, id cay.BuildID) error
}

// Usage is what teams use. Changes of a sandbox's record count it: one that
// ceases to run, in the transaction that records it. Amounts are added to the
// hours and days that they are of, with what they cost by then.
type Usage interface {
	// CountUsage counts what sandboxes that run used until now, each moment
	// once, also when several servers count. One that the records do not have running
	// is left out. From now on each is counted to the account that it has now.
	CountUsage(ctx context.Context, running []cay.Sandbox) error
	// SkipUsage leaves out the time since a running sandbox was last counted.
	SkipUsage(ctx context.Context, id cay.SandboxID) error
	// ShiftUsage moves the moments since which running sandboxes are not
	// counted, because the clock was set by that much.
	ShiftUsage(ctx context.Context, running []cay.SandboxID, by time.Duration) error
	// AddUsage counts amounts of a moment.
	AddUsage(ctx context.Context, a cay.Account, at time.Time, amounts cay.Amounts) error
	// CountKept counts what a node has kept since it last said what it keeps,
	// and notes what it keeps from now on.
	CountKept(ctx context.Context, node cay.NodeID, kept []Kept) error
	// Usage sums up what is counted.
	Usage(ctx context.Context, q UsageQuery) ([]UsageRow, error)
	// TeamMinutes lists the minutes from one time to another in which sandboxes
	// of a team began or ceased to run, oldest first; before them comes the
	// last one before.
	TeamMinutes(ctx context.Context, team cay.TeamID, from, to time.Time) ([]TeamMinute, error)
	// PruneUsage forgets hours and days before a time, and minutes before
	// another, but for the last one of each team. It returns how many hours and
	// days.
	PruneUsage(ctx context.Context, before, minutes time.Time) (int, error)
	// Prices returns what the meters cost.
	Prices(ctx context.Context) (cay.Prices, error)
	// SetPrices replaces them, outside Tx. Conflict means another currency than
	// that of costs which are counted, or of budgets.
	SetPrices(ctx context.Context, p cay.Prices) error
}

// Budgets bound what teams use.
type Budgets interface {
	// UsageLabels lists the keys of metadata that a team has metered, by name.
	UsageLabels(ctx context.Context, team cay.TeamID) ([]string, error)
	// SetUsageLabels replaces them. Counts so far stay as they are.
	SetUsageLabels(ctx context.Context, team cay.TeamID, labels []string) error
	// AddBudget records a budget, with events.
	AddBudget(ctx context.Context, b cay.Budget, events ...cay.Event) error
	// ChangeBudget replaces a budget's name, limit, action and what was told.
	ChangeBudget(ctx context.Context, b cay.Budget, events ...cay.Event) error
	// RemoveBudget removes a team's budget.
	RemoveBudget(ctx context.Context, team cay.TeamID, id cay.BudgetID, events ...cay.Event) error
	// TellBudget notes b.Told of the period b.ToldOf, with the events that tell
	// it, unless that much is noted or its limit has changed.
	TellBudget(ctx context.Context, b cay.Budget, events ...cay.Event) (told bool, err error)
	// Budgets lists a team's budgets, or with an empty one all, oldest first.
	Budgets(ctx context.Context, team cay.TeamID) ([]cay.Budget, error)
}

// Kept are bytes on a disk of a node.
type Kept struct {
	Account cay.Account // with all of a sandbox's metadata
	Bytes   int64       // of snapshots
	Volumes int64       // bytes of volumes
}

// UsageQuery says what to sum up. Hours that begin before From, or that end
// after To, are whole.
type UsageQuery struct {
	Team     cay.TeamID // empty means each
	From, To time.Time
	By       time.Duration // an hour or 24 of them; 0 is one sum
	Accounts bool          // one sum of each
}

// UsageRow is a sum. Account has the team alone unless it was asked for; At is
// the beginning of the hour or day.
type UsageRow struct {
	Account cay.Account
	At      time.Time
	Amounts cay.Amounts

	team    cay.TeamID
	account int64
}

// TeamMinute is how many sandboxes of a team ran in a minute: in its end and at
// most, and how many began to.
type TeamMinute struct {
	At                    time.Time
	Running, Most, Starts int
}

// Builds are how templates came to be.
type Builds interface {
	// PutBuild records a build or replaces it, safe from power cuts. One that
	// is ready gets its tags; with the default one, which no tags mean too, it
	// becomes what its template starts sandboxes from.
	PutBuild(ctx context.Context, b cay.Build) error
	// Build finds a build of a team's own template.
	Build(ctx context.Context, team cay.TeamID, id cay.BuildID) (cay.Build, error)
	// Builds lists the builds of a template that the team may see, newest
	// first.
	Builds(ctx context.Context, team cay.TeamID, id cay.TemplateID) ([]cay.Build, error)
	// BuiltSnapshots lists the snapshots of the builds of all templates of a team.
	BuiltSnapshots(ctx context.Context, team cay.TeamID) (map[cay.TemplateID][]cay.SnapshotID, error)
	// UncopiedBuilds lists the snapshots of builds that the bucket lacks, and
	// BuildsReplicated records that it has one. One that no build has is no error.
	UncopiedBuilds(ctx context.Context) ([]cay.SnapshotID, error)
	BuildsReplicated(ctx context.Context, id cay.SnapshotID, at time.Time) error
	// AddBuildLogs appends lines to a build's log, the first of which is its
	// from-th, counted from 0.
	AddBuildLogs(ctx context.Context, team cay.TeamID, build cay.BuildID, from int, lines []cay.BuildLog) error
	// BuildLogs reads a part of a build's log.
	BuildLogs(ctx context.Context, q BuildLogQuery) ([]cay.BuildLog, error)
}

// BuildQueue is the builds that wait or run.
type BuildQueue interface {
	// QueueBuild has a recorded build wait, since its last update, with what it
	// is made from, sealed. Conflict means that it waits or runs.
	QueueBuild(ctx context.Context, b cay.Build, sealed, same string) error
	// QueuedBuilds lists all teams' builds that wait or run, oldest first.
	QueuedBuilds(ctx context.Context) ([]QueuedBuild, error)
	// TakeBuild leases a build to an owner and returns what it is made from, for once: of
	// the team of which the fewest run, the one that waits longest; most of a team at once.
	TakeBuild(ctx context.Context, owner cay.NodeID, most int, lease time.Duration) (b cay.Build, sealed string, err error)
	// RenewBuild moves the end of a lease. NotFound means that the owner has it
	// no more.
	RenewBuild(ctx context.Context, id cay.BuildID, owner cay.NodeID, lease time.Duration) error
	// EndBuild takes a build out of the queue. NotFound means that the owner
	// has it no more.
	EndBuild(ctx context.Context, id cay.BuildID, owner cay.NodeID) error
}

// Sandboxes are records of sandboxes, live or ended.
type Sandboxes interface {
	// AddSandbox records a new sandbox, its first events and its Once, and
	// counts it for its template.
	AddSandbox(ctx context.Context, s cay.Sandbox, events ...cay.Event) error
	// UpdateSandbox replaces a sandbox's record, all but its metadata and its
	// network, and records what happened to it. The record's version must be
	// the recorded one, else it is a Conflict; it is one more then. The record
	// of one that is paused is safe from power cuts.
	UpdateSandbox(ctx context.Context, s cay.Sandbox, events ...cay.Event) error
	// UpdateNetwork is UpdateSandbox, and replaces the network as well.
	UpdateNetwork(ctx context.Context, s cay.Sandbox, events ...cay.Event) error
	// Sandbox finds a team's sandbox in any state.
	Sandbox(ctx context.Context, team cay.TeamID, id cay.SandboxID) (cay.Sandbox, error)
	// Sandboxes lists a team's sandboxes.
	Sandboxes(ctx context.Context, q SandboxQuery) ([]cay.Sandbox, error)
	// CountSandboxes counts what q finds without its After and Limit.
	CountSandboxes(ctx context.Context, q SandboxQuery) (int, error)
	// LiveSandboxes lists the sandboxes of all teams that are not killed.
	LiveSandboxes(ctx context.Context) ([]cay.Sandbox, error)
	// CountMadeOf counts those that were made of a template, and CountBorrowed those
	// of other teams that were made of a team's templates.
	CountMadeOf(ctx context.Context, template cay.TemplateID) (int, error)
	CountBorrowed(ctx context.Context, team cay.TeamID) (int, error)
	// RunningOf counts what a team has running, or about to, without one
	// sandbox: how many, and what their templates promise.
	RunningOf(ctx context.Context, team cay.TeamID, but cay.SandboxID) (cay.TeamLoad, error)
	// SnapshotUsed reports whether a sandbox that is not killed was made of
	// a snapshot or is saved in it, a template starts from it, or it is a
	// checkpoint.
	SnapshotUsed(ctx context.Context, id cay.SnapshotID) (bool, error)
	// PruneSandboxes forgets sandboxes that were killed before a time and
	// returns how many.
	PruneSandboxes(ctx context.Context, before time.Time) (int, error)
}

// IdempotencyKeys are the keys with which sandboxes were created.
type IdempotencyKeys interface {
	// CreatedWith finds what a team's idempotency key was last used for, at a
	// time or later: the Once and the sandbox, whose record may be gone.
	CreatedWith(ctx context.Context, team cay.TeamID, key string, since time.Time) (cay.Once, cay.SandboxID, error)
	// PruneOnce forgets idempotency keys from before a time and returns how
	// many.
	PruneOnce(ctx context.Context, before time.Time) (int, error)
}

// Volumes are records of volumes, which are somewhere else themselves.
type Volumes interface {
	// AddVolume records a volume, whose id must be new, and its name new to the
	// team, and what happened.
	AddVolume(ctx context.Context, v cay.Volume, events ...cay.Event) error
	// Volume finds a team's volume by id or by exact name; one of any team by id,
	// for an empty team.
	Volume(ctx context.Context, team cay.TeamID, ref string) (cay.Volume, error)
	// Volumes lists a team's volumes, or those of all teams for an empty one,
	// oldest first.
	Volumes(ctx context.Context, team cay.TeamID) ([]cay.Volume, error)
	// UpdateVolume replaces a volume's size. The version must be the recorded
	// one, else it is a Conflict; it is one more then.
	UpdateVolume(ctx context.Context, v cay.Volume, events ...cay.Event) error
	// RemoveVolume removes a team's volume. Conflict while it has snapshots.
	RemoveVolume(ctx context.Context, team cay.TeamID, id cay.VolumeID, events ...cay.Event) error
	// AddVolumeSnapshot records a snapshot of a volume of its team, whose name must
	// be new to the volume.
	AddVolumeSnapshot(ctx context.Context, s cay.VolumeSnapshot, events ...cay.Event) error
	// VolumeSnapshot finds a snapshot of a team's volume by id or exact name.
	VolumeSnapshot(ctx context.Context, team cay.TeamID, volume cay.VolumeID, ref string) (cay.VolumeSnapshot, error)
	// VolumeSnapshots lists those of a volume, of a team for no volume, or of all
	// teams for no team, oldest first.
	VolumeSnapshots(ctx context.Context, team cay.TeamID, volume cay.VolumeID) ([]cay.VolumeSnapshot, error)
	// RemoveVolumeSnapshot removes a snapshot of a team's volume.
	RemoveVolumeSnapshot(ctx context.Context, team cay.TeamID, id cay.VolumeID, events ...cay.Event) error
	// SandboxesWith lists the sandboxes that are not killed and were recorded with
	// a mount of a volume, oldest first.
	SandboxesWith(ctx context.Context, id cay.VolumeID) ([]cay.Sandbox, error)
}

// Trees are checkpoints, and where sandboxes are among them.
type Trees interface {
	// AddCheckpoint records a checkpoint, safe from power cuts. It comes after
	// the one that its sandbox is at, which is then at the new one. Tree and
	// Parent are the store's to find; it returns the record with them.
	AddCheckpoint(ctx context.Context, c cay.Checkpoint, events ...cay.Event) (cay.Checkpoint, error)
	// Checkpoint finds a team's checkpoint.
	Checkpoint(ctx context.Context, team cay.TeamID, id cay.SnapshotID) (cay.Checkpoint, error)
	// Checkpoints lists checkpoints, oldest first.
	Checkpoints(ctx context.Context, q CheckpointQuery) ([]cay.Checkpoint, error)
	// CountCheckpoints counts those of a tree.
	CountCheckpoints(ctx context.Context, tree cay.SandboxID) (int, error)
	// LabelCheckpoint changes the label of a team's checkpoint.
	LabelCheckpoint(ctx context.Context, team cay.TeamID, id cay.SnapshotID, label string) error
	// CheckpointReplicated records that the bucket has a team's checkpoint. One that is
	// forgotten is no error.
	CheckpointReplicated(ctx context.Context, team cay.TeamID, id cay.SnapshotID, at time.Time) error
	// RemoveCheckpoint forgets a team's checkpoint. Checkpoints and sandboxes that
	// came from it come from its parent then.
	RemoveCheckpoint(ctx context.Context, team cay.TeamID, id cay.SnapshotID) error
	// GiveCheckpoints makes all checkpoints of one sandbox another's.
	GiveCheckpoints(ctx context.Context, team cay.TeamID, from, to cay.SandboxID) error
	// Branch finds where a team's sandbox is in its tree. Without a record
	// that is the start of a tree of its own.
	Branch(ctx context.Context, team cay.TeamID, id cay.SandboxID) (cay.Branch, error)
	// Branches lists the recorded branches of a tree, or of all for an empty
	// one, whose sandboxes are not killed, by their start.
	Branches(ctx context.Context, tree cay.SandboxID) ([]cay.Branch, error)
	// PutBranch records where a sandbox is, or replaces that.
	PutBranch(ctx context.Context, b cay.Branch) error
}

// Events are what happened, in order.
type Events interface {
	// AddEvents records events that go with no change of a sandbox's record.
	// Each event of a team gets the next number, which the store chooses;
	// a reader that sees a number sees all smaller ones.
	AddEvents(ctx context.Context, events ...cay.Event) error
	// Events lists a team's events, oldest first unless asked otherwise.
	Events(ctx context.Context, q EventQuery) ([]cay.Event, error)
	// LastEvent returns the number of a team's newest event, also of one
	// that is forgotten; 0 when there never was one.
	LastEvent(ctx context.Context, team cay.TeamID) (int64, error)
	// EventCounters returns the number of each team's newest event.
	EventCounters(ctx context.Context) (map[cay.TeamID]int64, error)
	// RunOf finds the start of the run that a sandbox's event is of, and its
	// instance then. NotFound when that is forgotten, or it never ran.
	RunOf(ctx context.Context, team cay.TeamID, id cay.SandboxID, seq int64) (time.Time, cay.InstanceID, error)
	// PruneEvents forgets events from before a time and returns how many.
	PruneEvents(ctx context.Context, before time.Time) (int, error)
}

// Webhooks are addresses that are told events, and what became of that. The
// events are the queue: a webhook's cursor says how far it is, and an attempt
// that is to be repeated says when.
type Webhooks interface {
	// AddWebhook records a webhook whose cursor is at the team's newest event.
	// Exhausted when the team has most of them.
	AddWebhook(ctx context.Context, w cay.Webhook, most int) error
	// Webhook finds a team's webhook.
	Webhook(ctx context.Context, team cay.TeamID, id cay.WebhookID) (cay.Webhook, error)
	// Webhooks lists a team's webhooks, or those of all teams for an empty one,
	// oldest first.
	Webhooks(ctx context.Context, team cay.TeamID) ([]cay.Webhook, error)
	// UpdateWebhook replaces what clients may change. The version must be one
	// more than the recorded one, else it is a Conflict. One that is enabled,
	// and was not, begins at the team's newest event; one that is not enabled
	// loses what was to be tried again.
	UpdateWebhook(ctx context.Context, w cay.Webhook) error
	// RemoveWebhook removes a team's webhook with its attempts.
	RemoveWebhook(ctx context.Context, team cay.TeamID, id cay.WebhookID) error
	// RecordAttempts records attempts and how far their webhooks are: each
	// progress comes after those of its attempts. Attempts of a webhook that is
	// gone are left out.
	RecordAttempts(ctx context.Context, attempts []cay.WebhookAttempt, progress []WebhookProgress) error
	// Retries lists the attempts of a webhook that are to be repeated, the
	// earliest due first.
	Retries(ctx context.Context, id cay.WebhookID, limit int) ([]cay.WebhookAttempt, error)
	// Redeliver has the last attempt of an event repeated at a time. NotFound
	// when there is none.
	Redeliver(ctx context.Context, id cay.WebhookID, event string, at time.Time) error
	// Told lists the numbers of events after the cursor that were tried.
	Told(ctx context.Context, id cay.WebhookID, cursor int64) ([]int64, error)
	// Deliveries lists deliveries with their attempts.
	Deliveries(ctx context.Context, q DeliveryQuery) ([]cay.WebhookDelivery, error)
	// WebhookStats sums up the attempts of a webhook from a time to another in
	// buckets of a width, oldest first; those without attempts are left out.
	WebhookStats(ctx context.Context, id cay.WebhookID, from, to time.Time, width time.Duration) ([]cay.WebhookBucket, error)
	// PruneAttempts forgets attempts that are not to be repeated, from before a
	// time and of each webhook all but the newest most, and returns how many.
	PruneAttempts(ctx context.Context, before time.Time, most int) (int, error)
}

// WebhookProgress is how far a webhook is.
type WebhookProgress struct {
	Webhook cay.WebhookID
	Cursor  int64
	// FailingSince is the webhook's; Disabled, when set, turns it off.
	FailingSince time.Time
	Disabled     string
	Events       []cay.Event // that go with it
}

// Audits are the chain of what was done, and its signed heads. Events that are
// recorded give their rows in the same transaction.
type Audits interface {
	// AddAudit appends rows to the chain in the order given, which gives them
	// their numbers and hashes. The order of the chain is that of commits.
	AddAudit(ctx context.Context, rows ...cay.AuditRow) error
	// Audit lists rows, oldest first unless asked otherwise.
	Audit(ctx context.Context, q AuditQuery) ([]cay.AuditRow, error)
	// LastAudit returns the number and the hash of the newest row; zero when
	// there is none.
	LastAudit(ctx context.Context) (int64, cay.Hash, error)
	// AddAuditHead records a head, safe from power cuts as are the rows up to
	// it.
	AddAuditHead(ctx context.Context, h cay.AuditHead) error
	// AuditHeads lists the heads of a row and those after it, oldest first.
	AuditHeads(ctx context.Context, from int64, limit int) ([]cay.AuditHead, error)
	// LastAuditHead finds the newest head that was signed before a time, or at
	// any; if asked so, among those whose rows are dropped.
	LastAuditHead(ctx context.Context, before time.Time, dropped bool) (cay.AuditHead, error)
	// DropAudit drops the rows up to a head, and appends the row that says so.
	// PruneAudit removes them.
	DropAudit(ctx context.Context, head int64, row cay.AuditRow) error
	// PruneAudit removes the rows that are dropped and returns how many, and
	// heads: a dropped day keeps its last, a day before past one of each hour.
	PruneAudit(ctx context.Context, past time.Time) (int, error)
}

// SandboxQuery says which sandboxes to list. The order is by StartedAt, then
// by ID ascending in either direction.
type SandboxQuery struct {
	Team         cay.TeamID
	States       []cay.State       // any of these; none means all
	Metadata     map[string]string // all of these
	Template     cay.TemplateID    // empty means any
	StartedAfter time.Time         // inclusive; zero means any
	Ascending    bool
	After        *Cursor // the last one of the page before
	Limit        int     // 0 means all
}

// Cursor is a place in a list of sandboxes.
type Cursor struct {
	StartedAt time.Time
	ID        cay.SandboxID
}

// EventQuery says which events to list.
type EventQuery struct {
	Team    cay.TeamID
	Sandbox cay.SandboxID // empty means all
	Type    cay.EventType // empty means all
	Rules   []EventRule   // one of these holds; none means all
	After   int64         // only greater numbers
	Newest  bool          // newest first
	Limit   int           // 0 means all
	Offset  int           // how many to leave out; with a Limit
}

// EventRule is of a type, with one reason only or all but one.
type EventRule struct {
	Type      cay.EventType
	Only, Not string // empty means any
}

// DeliveryQuery says which deliveries to list: by their first attempt, newest
// first unless asked otherwise.
type DeliveryQuery struct {
	Webhook   cay.WebhookID
	Event     string    // only this one
	From, To  time.Time // of the first attempt; zero means any
	Types     []string  // any of these; none means all
	Failed    *bool     // how the last attempt ended; nil means any
	Ascending bool
	After     *DeliveryCursor // the last one of the page before
	Limit     int
}

// DeliveryCursor is a place in a list of deliveries.
type DeliveryCursor struct {
	At    time.Time
	Event string
}

// AuditQuery says which rows to list. An empty field means all.
type AuditQuery struct {
	Team                  cay.TeamID
	Actor, Action, Target string    // the actor's id; each exactly
	From, To              time.Time // From inclusive, To exclusive
	After, Before         int64     // only greater, and smaller, numbers
	Newest                bool      // newest first
	Limit                 int
}

// BuildLogQuery says which lines of a build's log to read.
type BuildLogQuery struct {
	Build    cay.BuildID
	Level    cay.LogLevel // and above
	From     time.Time    // inclusive, in the direction of reading; zero means the end where that begins
	Backward bool         // the newest first
	Offset   int          // lines to leave out
	Limit    int
}

// CheckpointQuery says which checkpoints to list. An empty field means all.
type CheckpointQuery struct {
	Team    cay.TeamID
	Tree    cay.SandboxID
	Sandbox cay.SandboxID
}
