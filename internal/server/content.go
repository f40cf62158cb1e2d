package server

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/edge/rest"
	"github.com/cay-run/cay/internal/machine/volume/tree"
)

// content gives the REST face the files of volumes.
type content struct{ *Server }

// Owner returns the team whose volume a token opens.
func (c content) Owner(id cay.VolumeID, token string) (cay.TeamID, bool) {
	return c.tokensOf.Owner(id, token)
}

// Files opens a volume that the team has. While it is open it is not deleted.
func (c content) Files(ctx context.Context, team cay.TeamID, id cay.VolumeID) (rest.VolumeFiles, error) {
	owner, err := c.records.Team(ctx, team)
	if err == nil {
		err = owner.Open()
	}
	if err == nil {
		_, err = c.records.Volume(ctx, team, string(id))
	}
	if err != nil {
		return nil, err
	}
	dir, err := c.host.Volumes.Attach(ctx, id)
	if err != nil {
		return nil, err
	}
	t, err := tree.Open(dir)
	if err != nil {
		c.host.Volumes.Detach(id)
		return nil, err
	}
	return files{t, func() { c.host.Volumes.Detach(id) }}, nil
}

// files are those of an attached volume.
type files struct {
	*tree.Tree
	detach func()
}

// Close ends their use.
func (f files) Close() error {
	defer f.detach()
	return f.Tree.Close()
}
