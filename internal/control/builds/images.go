package builds

import (
	"context"
	"io"

	"github.com/cay-run/cay"
)

// Images are the container images that teams have on the machine that builds.
// An image is found by its name or its digest.
type Images interface {
	Images(team cay.TeamID) ([]cay.Image, error)
	Image(team cay.TeamID, ref string) (cay.Image, error)
	// Pull fetches an image from its registry, Import takes one from an
	// archive; both tell each step. As is the name of an image that brings none.
	Pull(ctx context.Context, team cay.TeamID, ref string, a *cay.RegistryAuth, step func(string)) (cay.Image, error)
	Import(ctx context.Context, team cay.TeamID, archive io.Reader, as string, step func(string)) (cay.Image, error)
	Remove(team cay.TeamID, ref string) error
}

// Taking pulls or imports an image, and tells each step.
type Taking func(step func(string)) (cay.Image, error)

// mayUse checks that a caller may use the images of its team, and that there
// are any.
func (q *Queue) mayUse(who cay.Caller, scope cay.Scopes) error {
	if err := who.May(scope); err != nil {
		return err
	}
	if q.images == nil {
		return cay.Errorf(cay.Unsupported, "this server keeps no images")
	}
	return nil
}

// Images lists a team's images.
func (q *Queue) Images(_ context.Context, who cay.Caller) ([]cay.Image, error) {
	if err := q.mayUse(who, cay.ReadTemplates); err != nil {
		return nil, err
	}
	return q.images.Images(who.Team)
}

// Image finds a team's image.
func (q *Queue) Image(_ context.Context, who cay.Caller, ref string) (cay.Image, error) {
	if err := q.mayUse(who, cay.ReadTemplates); err != nil {
		return cay.Image{}, err
	}
	return q.images.Image(who.Team, ref)
}

// RemoveImage forgets a team's image. Templates that were built from it stay.
func (q *Queue) RemoveImage(_ context.Context, who cay.Caller, ref string) error {
	if err := q.mayUse(who, cay.WriteTemplates); err != nil {
		return err
	}
	return q.images.Remove(who.Team, ref)
}

// PullImage returns what fetches an image for a team, until ctx ends.
func (q *Queue) PullImage(ctx context.Context, who cay.Caller, ref string, a *cay.RegistryAuth) (Taking, error) {
	if err := q.mayUse(who, cay.WriteTemplates); err != nil {
		return nil, err
	}
	return func(step func(string)) (cay.Image, error) {
		return q.images.Pull(ctx, who.Team, ref, a, step)
	}, nil
}

// ImportImage returns what takes an image from an archive for a team, until ctx
// ends.
func (q *Queue) ImportImage(ctx context.Context, who cay.Caller, archive io.Reader, as string) (Taking, error) {
	if err := q.mayUse(who, cay.WriteTemplates); err != nil {
		return nil, err
	}
	return func(step func(string)) (cay.Image, error) {
		return q.images.Import(ctx, who.Team, archive, as, step)
	}, nil
}
