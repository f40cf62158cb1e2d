package cay

import "maps"

// Limit names a bound of what a team may have or do.
type Limit string

// The limits. Those of a rate come in pairs: how many requests a second, and
// how many at once after a rest.
const (
	LimitSandboxes Limit = "sandboxes"
	LimitCPUs      Limit = "cpus"
	LimitMemory    Limit = "memoryMB"
	LimitDisk      Limit = "diskMB"
	LimitTemplates Limit = "templates"
	LimitSnapshots Limit = "snapshotBytes"
	LimitBuilds    Limit = "builds"
	LimitVolumes   Limit = "volumes"
	LimitVolumeMB  Limit = "volumeMB"
	// Of each sandbox, and not of the team's in all.
	LimitModelTokens   Limit = "sandboxModelTokens"
	LimitModelRequests Limit = "sandboxModelRequests"

	LimitCreates     Limit = "createsPerSecond"
	LimitCreateBurst Limit = "createBurst"
	LimitWrites      Limit = "writesPerSecond"
	LimitWriteBurst  Limit = "writeBurst"
	LimitReads       Limit = "readsPerSecond"
	LimitReadBurst   Limit = "readBurst"
)

// MaxLimit is the greatest value of a limit: every JSON reader takes it.
const MaxLimit = 1 << 53

// LimitInfo describes a limit.
type LimitInfo struct {
	Limit   Limit
	Meaning string
}

// Burst reports whether it is the burst of a rate.
func (l LimitInfo) Burst() bool {
	return l.Limit == LimitCreateBurst || l.Limit == LimitWriteBurst || l.Limit == LimitReadBurst
}

// AllLimits lists the limits in the order in which people read them.
func AllLimits() []LimitInfo {
	return []LimitInfo{
		{LimitSandboxes, "sandboxes that run at once"},
		{LimitCPUs, "processors that running sandboxes are promised in all"},
		{LimitMemory, "memory that running sandboxes are promised in all, in MB"},
		{LimitDisk, "disk that running sandboxes are promised in all, in MB"},
		{LimitTemplates, "templates of the team's own, without snapshots of sandboxes"},
		{LimitSnapshots, "bytes on disk of paused sandboxes, checkpoints and snapshots"},
		{LimitBuilds, "builds that run or wait at once"},
		{LimitVolumes, "volumes that there are"},
		{LimitVolumeMB, "sizes of volumes in all, in MB, whether they are full or not"},
		{LimitModelTokens, "tokens that each sandbox may exchange with models in its life"},
		{LimitModelRequests, "requests to models that each sandbox may have under way"},
		{LimitCreates, "sandboxes that are created, forked or resumed a second"},
		{LimitCreateBurst, "how many of them at once after a rest; 0 is what a second has"},
		{LimitWrites, "other requests a second that change something"},
		{LimitWriteBurst, "how many of them at once after a rest; 0 is what a second has"},
		{LimitReads, "requests a second that only read"},
		{LimitReadBurst, "how many of them at once after a rest; 0 is what a second has"},
	}
}

// TeamLimits are bounds of one team. A limit that is not there is not set: the
// server's default holds. 0 is no bound.
type TeamLimits map[Limit]int64

// Check refuses limits that there are not, and values that none can have.
func (l TeamLimits) Check() error {
	known := map[Limit]bool{}
	for _, one := range AllLimits() {
		known[one.Limit] = true
	}
	for name, value := range l {
		switch {
		case !known[name]:
			return Errorf(Invalid, "limits: there is no limit %.80q", string(name)).
				WithHint("`cay limits` lists what there is")
		case value < 0 || value > MaxLimit:
			return Errorf(Invalid, "%s: must be 0, which is no bound, to %d", name, int64(MaxLimit))
		}
	}
	return nil
}

// Over returns the limits with those of defaults that are not set.
func (l TeamLimits) Over(defaults TeamLimits) TeamLimits {
	out := make(TeamLimits, len(defaults)+len(l))
	maps.Copy(out, defaults)
	maps.Copy(out, l)
	return out
}

// TeamLoad is what a team has running at once: how many sandboxes, and the sums
// of what they are promised.
type TeamLoad struct {
	Sandboxes int
	Promised  Limits
}

// Add counts one more sandbox of a size.
func (t TeamLoad) Add(one Limits) TeamLoad {
	t.Sandboxes++
	t.Promised.CPUs += one.CPUs
	t.Promised.MemoryMB += one.MemoryMB
	t.Promised.DiskMB += one.DiskMB
	return t
}

// BoundsRunning reports whether any limit is one of what runs at once.
func (l TeamLimits) BoundsRunning() bool {
	return l[LimitSandboxes] > 0 || l[LimitCPUs] > 0 || l[LimitMemory] > 0 || l[LimitDisk] > 0
}

// Admit refuses more than what may run at once, in words that clients wait for
// room by, unless the sandbox is too large even alone.
func (l TeamLimits) Admit(t TeamLoad) error {
	over := func(limit Limit, n int) bool { return l[limit] > 0 && int64(n) > l[limit] }
	refuse := func(limit Limit, what string, n int) error {
		if t.Sandboxes == 1 {
			return Errorf(Exhausted, "the sandbox alone has %d %s, and your team's sandboxes may have %d in all", n, what, l[limit]).WithCode(CodeTeamLimit).
				WithHint("use a smaller template, or have the limit %s raised; `cay limits` shows it", limit)
		}
		return overLimit(limit, "you have reached the "+textSandboxes+": with this one they have %d %s, and may have %d", n, what, l[limit])
	}
	switch {
	case over(LimitSandboxes, t.Sandboxes):
		return overLimit(LimitSandboxes, "you have reached the "+textSandboxes+" (%d)", l[LimitSandboxes])
	case over(LimitMemory, t.Promised.MemoryMB):
		return refuse(LimitMemory, "MB of memory", t.Promised.MemoryMB)
	case over(LimitCPUs, t.Promised.CPUs):
		return refuse(LimitCPUs, "processors", t.Promised.CPUs)
	case over(LimitDisk, t.Promised.DiskMB):
		return refuse(LimitDisk, "MB of disk", t.Promised.DiskMB)
	}
	return nil
}

// AdmitBuild refuses another build to a team with this many running or waiting, and
// where the server has no room.
func (l TeamLimits) AdmitBuild(own int, room bool) error {
	switch most := l[LimitBuilds]; {
	case most > 0 && int64(own) >= most:
		return Errorf(Exhausted, "you have reached the "+textBuilds+" (%d)", most).
			WithCode(CodeBuildLimit).WithHint("wait until one is done, or have the limit %s raised; `cay limits` shows it", LimitBuilds)
	case !room:
		return Errorf(Exhausted, "this server has reached the "+textBuilds).WithCode(CodeBuildLimit).WithHint("try again later")
	}
	return nil
}

// AdmitTemplate refuses one more template than a team that has n may have.
func (l TeamLimits) AdmitTemplate(n int) error {
	if most := l[LimitTemplates]; most > 0 && int64(n) >= most {
		return Errorf(Exhausted, "your team has the %d templates that it may have", most).WithCode(CodeTeamLimit).
			WithHint("remove some, or have the limit %s raised; `cay limits` shows it", LimitTemplates)
	}
	return nil
}

// AdmitBytes refuses to save more of sandboxes than may be saved: saved bytes are
// there, or about to be, and more would be added.
func (l TeamLimits) AdmitBytes(saved, more int64) error {
	most := l[LimitSnapshots]
	if most <= 0 || saved < most && saved+more <= most {
		return nil
	}
	return Errorf(Exhausted, "your team's saved sandboxes take %d MB, this one would add about %d MB, and they may take %d MB",
		saved>>20, more>>20, most>>20).WithCode(CodeTeamLimit).
		WithHint("remove paused sandboxes, checkpoints or snapshots, or have the limit %s raised; the sandbox runs on", LimitSnapshots)
}

// AdmitVolumes refuses volumes beyond what a team may have: n in all, whose sizes
// are sizeMB together.
func (l TeamLimits) AdmitVolumes(n int, sizeMB int64) error {
	hint := func(limit Limit) string {
		return "delete some, or have the limit " + string(limit) + " raised; `cay limits` shows it"
	}
	if most := l[LimitVolumes]; most > 0 && int64(n) > most {
		return Errorf(Exhausted, "your team has the %d volumes that it may have", most).WithCode(CodeTeamLimit).WithHint("%s", hint(LimitVolumes))
	}
	if most := l[LimitVolumeMB]; most > 0 && sizeMB > most {
		return Errorf(Exhausted, "your team's volumes would have %d MB in all, and may have %d MB", sizeMB, most).
			WithCode(CodeTeamLimit).WithHint("%s", hint(LimitVolumeMB))
	}
	return nil
}

// AdmitModel refuses a sandbox one more request to a model: it has exchanged that
// many tokens with models, and has that many requests under way.
func (l TeamLimits) AdmitModel(tokens int64, underWay int) error {
	if err := l.AdmitTokens(tokens, 0); err != nil {
		return err
	}
	if most := l[LimitModelRequests]; most > 0 && int64(underWay) >= most {
		return Errorf(Exhausted, "this sandbox has %d requests to models under way, which is the most", underWay).WithCode(CodeRateLimit).
			WithHint("wait for the end of one, or have the limit %s raised", LimitModelRequests)
	}
	return nil
}

// AdmitTokens refuses a sandbox one more request to a model: it has exchanged that many
// tokens with models, and its requests under way may take so many more.
func (l TeamLimits) AdmitTokens(tokens, underWay int64) error {
	most := l[LimitModelTokens]
	switch {
	case most <= 0 || tokens+underWay < most:
		return nil
	case tokens < most:
		return Errorf(Exhausted, "this sandbox may exchange %d tokens with models: it has exchanged %d, and its requests that are under way may take the rest", most, tokens).
			WithCode(CodeRateLimit).WithHint("wait for their end, or have the limit %s raised", LimitModelTokens)
	}
	return Errorf(Exhausted, "this sandbox has exchanged %d tokens with models, and may exchange %d", tokens, most).WithCode(CodeTeamLimit).
		WithHint("have the limit %s raised", LimitModelTokens)
}

func overLimit(limit Limit, format string, args ...any) error {
	return Errorf(Exhausted, format, args...).WithCode(CodeTeamLimit).
		WithHint("end or pause some, or have the limit %s raised; `cay limits` shows it", limit)
}
