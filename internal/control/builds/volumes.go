package builds

import (
	"context"

	"github.com/cay-run/cay"
)

// volumesOf finds the volumes that a build is to mount. The build waits with
// them as they were found then: a volume that takes the name of one that was
// deleted meanwhile is another.
func (q *Queue) volumesOf(ctx context.Context, who cay.Caller, start BuildStart) ([]cay.VolumeMount, error) {
	var out []cay.VolumeMount
	err := cay.CheckVolumeMounts(start.Mounts, func(i int) error {
		one, err := q.ledger.FindMount(ctx, who, start.Mounts[i])
		if err == nil {
			out = append(out, one)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, apart(start.Steps, out)
}

// apart refuses secrets that would lie on a volume: a link to one would be seen
// by sandboxes that mount it.
func apart(steps []cay.BuildStep, mounts []cay.VolumeMount) error {
	for i, step := range steps {
		for _, secret := range step.Secrets {
			for _, m := range mounts {
				if secret.Target != "" && m.Covers(secret.Target) {
					return cay.Errorf(cay.Invalid, "steps[%d]: the secret %.80q cannot be on the volume %s, at %.200q", i, secret.ID, m.Name, secret.Target)
				}
			}
		}
	}
	return nil
}
