package build

import "github.com/cay-run/cay"

// volumesOf are the volumes that a step sees. Only RUN does: a COPY and a
// WORKDIR change the template, wherever volumes lie.
func (r *run) volumesOf(s cay.BuildStep) []cay.VolumeMount {
	if s.Type != "RUN" {
		return nil
	}
	return r.spec.Volumes
}

// leaveUnfit ends the sandbox that steps run in if it has volumes that a step is
// not to see, or lacks those that it is to see.
func (r *run) leaveUnfit(s cay.BuildStep) {
	if r.box != nil && r.box.mixed != (len(r.volumesOf(s)) > 0) {
		r.leave()
		r.last = nil // what the next one changes is over another layer
	}
}

// firstWithVolumes is the first step that sees volumes, or the number of steps.
// Such a step depends on the volumes' content, and its writes there are no part
// of a layer: nothing that was kept stands for it, or for a step after it.
func (r *run) firstWithVolumes() int {
	for i, s := range r.spec.Steps {
		if len(r.volumesOf(s)) > 0 {
			return i
		}
	}
	return len(r.spec.Steps)
}

// remember has later builds go on from the end of a step, unless it depends on
// volumes.
func (r *run) remember(i int) error {
	if i >= r.fresh {
		return nil
	}
	return r.layers.Remember(r.keys[i], r.state)
}
