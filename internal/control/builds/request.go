package builds

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// The bounds of a template's request, and its defaults.
const (
	defaultCPUs   = 2
	defaultMemory = 1024 // MB
	defaultDisk   = 10240
	mostCPUs      = 32
	leastMemory   = 128
	mostMemory    = 65536
	mostDisk      = 65536
	stepsMost     = 1000
	nameMost      = 128
	mountsMost    = 64        // secrets of a step
	secretsMost   = 512 << 10 // bytes of a build's
)

var (
	templateName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	filesHash    = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// BuildRequest asks for a build of a template, which is made when there is
// none of the name. Zero limits mean the usual ones.
type BuildRequest struct {
	Name        string // may have a team's name before it, and a tag
	Tags        []string
	CPUs        int
	MemoryMB    int
	MinFreeDisk int // MB
}

// RequestBuild records a build that waits for StartBuild, and returns it with
// its template.
func (q *Queue) RequestBuild(ctx context.Context, who cay.Caller, r BuildRequest) (cay.Template, cay.Build, error) {
	if err := who.May(cay.WriteTemplates); err != nil {
		return cay.Template{}, cay.Build{}, err
	}
	fail := func(err error) (cay.Template, cay.Build, error) { return cay.Template{}, cay.Build{}, err }
	name, tag, err := q.ownName(ctx, who.Team, r.Name)
	if err != nil {
		return fail(err)
	}
	tags, err := ledger.CleanTags(append(slices.Clone(r.Tags), tag))
	if err != nil {
		return fail(err)
	}
	limits, err := r.limits()
	if err != nil {
		return fail(err)
	}
	if slices.Contains(q.reserved, name) {
		return fail(cay.Errorf(cay.Denied, "name: %q is a template that Cay brings", name).WithHint("choose another name"))
	}
	if err := q.hasRoom(ctx, q.store, who.Team); err != nil { // before anything is made or uploaded; StartBuild decides
		return fail(err)
	}
	t, err := q.templateFor(ctx, who.Team, name)
	if err != nil {
		return fail(err)
	}
	b := cay.Build{
		ID: cay.NewBuildID(), Template: t.ID, Team: who.Team, State: cay.BuildWaiting, Limits: limits,
		CreatedAt: ledger.Now(), UpdatedAt: ledger.Now(), Tags: tags,
	}
	return t, b, q.ledger.Do(ctx, who, "build.requested", string(b.ID), func(tx store.Store) error { return tx.PutBuild(ctx, b) },
		"template", string(t.ID), "name", name, "tags", strings.Join(tags, " "))
}

// ownName takes a name apart that must be the team's own.
func (q *Queue) ownName(ctx context.Context, team cay.TeamID, full string) (name, tag string, err error) {
	full = strings.ToLower(strings.TrimSpace(full))
	rest, tag, hasTag := strings.Cut(full, ":")
	space, name, hasSpace := strings.Cut(rest, "/")
	if !hasSpace {
		space, name = "", rest
	}
	switch {
	case full == "":
		return "", "", cay.Errorf(cay.Invalid, "name: is required")
	case len(full) > nameMost:
		return "", "", cay.Errorf(cay.Invalid, "name: must have at most %d characters", nameMost)
	case !templateName.MatchString(name), cay.ValidUUID(name):
		return "", "", cay.Errorf(cay.Invalid, "name: %q is no name for a template", full).
			WithHint("use letters, digits, '_' and '-'")
	case hasTag && !ledger.IsTag(tag):
		return "", "", ledger.BadTag(tag)
	case space == "":
		return name, tag, nil
	}
	owner, err := q.store.TeamByName(ctx, space)
	if err != nil || owner.ID != team {
		return "", "", cay.Errorf(cay.Denied, "name: %q is not your team", space)
	}
	return name, tag, nil
}

func (r BuildRequest) limits() (cay.Limits, error) {
	l := cay.Limits{CPUs: r.CPUs, MemoryMB: r.MemoryMB, DiskMB: max(defaultDisk, r.MinFreeDisk)}
	if l.CPUs == 0 {
		l.CPUs = defaultCPUs
	}
	if l.MemoryMB == 0 {
		l.MemoryMB = defaultMemory
	}
	switch {
	case l.CPUs > mostCPUs:
		return l, cay.Errorf(cay.Invalid, "CPU count must be at most %d", mostCPUs)
	case l.CPUs < 1 || l.CPUs > 1 && l.CPUs%2 != 0:
		return l, cay.Errorf(cay.Invalid, "CPU count must be 1 or an even number")
	case l.MemoryMB < leastMemory:
		return l, cay.Errorf(cay.Invalid, "Memory must be at least %d MiB", leastMemory)
	case l.MemoryMB > mostMemory:
		return l, cay.Errorf(cay.Invalid, "Memory must be at most %d MiB", mostMemory)
	case l.MemoryMB%2 != 0:
		return l, cay.Errorf(cay.Invalid, "Memory must be divisible by 2")
	case r.MinFreeDisk < 0 || l.DiskMB > mostDisk:
		return l, cay.Errorf(cay.Invalid, "minFreeDiskMb: must be between 0 and %d", mostDisk)
	}
	return l, nil
}

// templateFor finds or makes the team's own template of a name.
func (q *Queue) templateFor(ctx context.Context, team cay.TeamID, name string) (cay.Template, error) {
	for range 2 {
		t, err := q.store.TemplateByName(ctx, team, name)
		switch {
		case err == nil && t.Team == team && t.Source != "":
			return t, cay.Errorf(cay.Conflict, "name: there is a snapshot of the name %q", name).WithHint("choose another name")
		case err == nil && t.Team == team:
			return t, nil
		case err != nil && cay.KindOf(err) != cay.NotFound:
			return t, err
		}
		t = cay.Template{ID: cay.NewTemplateID(), Team: team, Names: []string{name}, CreatedAt: ledger.Now(), UpdatedAt: ledger.Now()}
		err = q.addTemplate(ctx, t)
		if cay.KindOf(err) != cay.Conflict { // else another caller just made it
			return t, err
		}
	}
	return cay.Template{}, cay.Errorf(cay.Conflict, "name: %q was made and removed at the same time", name)
}

// addTemplate records a template, if its team may have another.
func (q *Queue) addTemplate(ctx context.Context, t cay.Template) error {
	limits := q.ledger.Limits(t.Team)
	return q.store.Tx(ctx, func(tx store.Store) error {
		if limits[cay.LimitTemplates] > 0 {
			n, err := q.ledger.CountTemplates(ctx, tx, t.Team)
			if err == nil {
				err = limits.AdmitTemplate(n)
			}
			if err != nil {
				return err
			}
		}
		return tx.AddTemplate(ctx, t)
	})
}

// BuildStart is what a build is made from and how. It waits in the records,
// sealed, under the names of its fields.
type BuildStart struct {
	FromTemplate string // this or an image
	FromImage    string
	FromArchive  string // or the hash of an uploaded file of a template
	Registry     *cay.RegistryAuth
	Steps        []cay.BuildStep
	StartCmd     string
	ReadyCmd     string
	Docker       bool // as cay.Setup.Docker
	Force        bool
	Secrets      map[string][]byte
	Mounts       []cay.MountSpec   `json:"-"` // volumes that the caller asks for
	Volumes      []cay.VolumeMount // those, as they were found; no caller sets it
}

// same is a digest of a template and of what its build is made from: two of one
// digest become the same. It is empty for a build that is to run whatever is known.
func (s BuildStart) same(b cay.Build) string {
	if s.Force || slices.ContainsFunc(s.Steps, func(step cay.BuildStep) bool { return step.Force }) {
		return ""
	}
	s.Secrets, s.Registry = nil, nil // their values are no part of what is built, and of no digest
	text, err := json.Marshal([]any{b.Template, b.Limits, s})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// check refuses what no build could do.
func (s BuildStart) check() error {
	switch {
	case s.FromImage != "" && s.FromTemplate != "":
		return cay.Errorf(cay.Invalid, "fromImage, fromTemplate: only one of them can be given")
	case s.FromArchive != "" && (s.FromImage != "" || s.FromTemplate != ""):
		return cay.Errorf(cay.Invalid, "cayArchive: cannot be given with fromImage or fromTemplate")
	case s.FromArchive != "" && !filesHash.MatchString(s.FromArchive):
		return cay.Errorf(cay.Invalid, "cayArchive: must be 64 hexadecimal digits")
	case s.FromImage == "" && s.FromTemplate == "" && s.FromArchive == "":
		return cay.Errorf(cay.Invalid, "fromImage, fromTemplate: one of them must be given")
	case len(s.Steps) > stepsMost:
		return cay.Errorf(cay.Invalid, "steps: must be at most %d", stepsMost)
	}
	for i, step := range s.Steps {
		if err := cmp.Or(checkStep(step), checkMounts(step)); err != nil {
			return cay.Errorf(cay.Invalid, "steps[%d]: %s", i, err)
		}
	}
	size := 0
	for _, text := range s.Secrets {
		size += len(text)
	}
	if size > secretsMost {
		return cay.Errorf(cay.Invalid, "caySecrets: must have at most %d KB in all", secretsMost>>10)
	}
	return nil
}

// checkMounts refuses secrets that no step could see. Their values are never
// part of an error.
func checkMounts(s cay.BuildStep) error {
	if len(s.Secrets) > 0 && s.Type != "RUN" {
		return cay.Errorf(cay.Invalid, "%s cannot have secrets", s.Type)
	}
	if len(s.Secrets) > mountsMost {
		return cay.Errorf(cay.Invalid, "a step can have at most %d secrets", mountsMost)
	}
	for _, m := range s.Secrets {
		switch {
		case m.Target == "" && m.Env == "":
			return cay.Errorf(cay.Invalid, "the secret %.80q needs a target or a variable", m.ID)
		case m.Target != "" && (!path.IsAbs(m.Target) || path.Clean(m.Target) != m.Target || m.Target == "/" || strings.ContainsRune(m.Target, 0)):
			return cay.Errorf(cay.Invalid, "the secret %.80q cannot be at %.200q", m.ID, m.Target).WithHint("use an absolute path")
		case m.Env != "" && !variableName.MatchString(m.Env):
			return cay.Errorf(cay.Invalid, "%.80q is no name for a variable", m.Env)
		case m.UID < 0 || m.GID < 0:
			return cay.Errorf(cay.Invalid, "the secret %.80q cannot belong to %d:%d", m.ID, m.UID, m.GID)
		}
	}
	return nil
}

// argsOf is how many arguments the steps have, least and most.
var argsOf = map[string][2]int{
	"COPY": {2, 4}, "RUN": {1, 2}, "ENV": {2, 1000}, "WORKDIR": {1, 1}, "USER": {1, 1},
}

func checkStep(s cay.BuildStep) error {
	n, known := argsOf[s.Type]
	switch {
	case !known:
		return cay.Errorf(cay.Invalid, "unknown type %.40q", s.Type)
	case len(s.Args) < n[0] || len(s.Args) > n[1]:
		return cay.Errorf(cay.Invalid, "%s cannot have %d arguments", s.Type, len(s.Args))
	case s.Type == "ENV" && len(s.Args)%2 != 0:
		return cay.Errorf(cay.Invalid, "ENV needs a value for every name")
	case s.Type == "COPY" && !filesHash.MatchString(s.FilesHash):
		return cay.Errorf(cay.Invalid, "COPY needs the hash of its files")
	case s.Args[0] == "":
		return cay.Errorf(cay.Invalid, "%s needs an argument that is not empty", s.Type)
	}
	for _, arg := range s.Args {
		if strings.ContainsRune(arg, 0) {
			return cay.Errorf(cay.Invalid, "%s has an argument with a NUL in it", s.Type)
		}
	}
	return nil
}
