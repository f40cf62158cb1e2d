package cay

import (
	"slices"
	"time"
)

// BuildState is where a build is.
type BuildState string

// The states of a build, in E2B's words.
const (
	BuildWaiting  BuildState = "waiting"
	BuildBuilding BuildState = "building"
	BuildReady    BuildState = "ready"
	BuildError    BuildState = "error"
)

// Template is a named starting point. Its newest ready build is what a
// sandbox starts from.
type Template struct {
	ID           TemplateID
	Team         TeamID
	Names        []string // aliases, the first is the one to show
	Public       bool
	CreatedAt    time.Time
	UpdatedAt    time.Time
	LastSpawned  time.Time // zero when never
	SpawnCount   int64
	BuildCount   int
	Build        BuildID // the newest ready one; empty when none
	Snapshot     SnapshotID
	BuildState   BuildState
	Limits       Limits
	EnvdVersion  string
	Source       SandboxID // set for snapshots that a user took: of this sandbox
	RecipeDigest string    // of what it was built from; equal digests need no rebuild
	Setup        Setup     // of the newest ready build
}

// Shown is the template as lists show it. One whose builds have named tags only
// starts no sandbox by its bare name, but it has a size and a state: those of
// its newest ready build, else of its newest. builds are its own, newest first.
func (t Template) Shown(builds []Build) Template {
	if t.Build != "" || len(builds) == 0 {
		return t
	}
	b := builds[0]
	if i := slices.IndexFunc(builds, func(b Build) bool { return b.State == BuildReady }); i >= 0 {
		b = builds[i]
	}
	t.Build, t.BuildState, t.Limits, t.EnvdVersion = b.ID, b.State, b.Limits, b.EnvdVersion
	return t
}
