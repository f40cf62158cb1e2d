package cay

import "time"

// Build is one making of a template: what it was made from and, when ready,
// the snapshot that sandboxes start from.
type Build struct {
	ID           BuildID
	Template     TemplateID
	Team         TeamID
	State        BuildState
	Snapshot     SnapshotID // empty until ready
	RecipeDigest string     // of what it was built from
	Limits       Limits
	EnvdVersion  string
	CreatedAt    time.Time
	UpdatedAt    time.Time
	FinishedAt   time.Time // zero until ready or failed
}
