package node

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// A template that adds little to another shows that little as its own, where
// the file system tells what files share; else images are shared as wholes.
func TestDiskUse(t *testing.T) {
	const snapshot, image = 1000, 1 << 20
	for name, tc := range map[string]struct {
		places map[string][]disk.Extent
		want   []cay.DiskUse
	}{
		"unknown": {nil, []cay.DiskUse{{Own: snapshot + image}, {Own: snapshot, Shared: image}, {Own: snapshot, Shared: image}}},
		"known": {map[string][]disk.Extent{
			"base":  {{Start: 0, Bytes: 700}, {Start: 5000, Bytes: 100}},
			"child": {{Start: 0, Bytes: 700}, {Start: 9000, Bytes: 10}},
		}, []cay.DiskUse{{Own: snapshot + 100, Shared: 700}, {Own: snapshot, Shared: 710}, {Own: snapshot, Shared: 710}}},
	} {
		use := diskUse{
			place: func(root string) []disk.Extent { return tc.places[root] },
			size:  func(string) int64 { return image },
		}
		for _, root := range []string{"base", "child", "child"} {
			use.open()
			use.add(cay.Snapshot{Root: root, Files: []cay.SnapFile{{Size: snapshot}}})
		}
		if got := use.sums(); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

// A reader that lost an answer asks again with the cursor that it has.
func TestDeathsAreAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeaths()
		ask := func(at cay.Cursor, want ...cay.InstanceID) cay.Cursor {
			t.Helper()
			list, next, err := d.after(t.Context(), at)
			var got []cay.InstanceID
			for _, death := range list {
				got = append(got, death.Instance)
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("after %+v: %v, %v; want %v", at, got, err, want)
			}
			return next
		}
		d.add(cay.Death{Instance: "a"})
		d.add(cay.Death{Instance: "b"})
		ask(cay.Cursor{}, "a", "b")
		next := ask(cay.Cursor{Epoch: "another node's", Seq: 77}, "a", "b")
		d.add(cay.Death{Instance: "c"})
		ask(next, "c")
		next = ask(next, "c")

		waiting := make(chan struct{})
		go func() {
			defer close(waiting)
			next = ask(next, "d")
		}()
		synctest.Wait()
		d.add(cay.Death{Instance: "d"})
		<-waiting

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := d.after(ctx, next); err == nil {
			t.Error("nothing is told and nothing is wrong")
		}
		d.close()
		if _, _, err := d.after(t.Context(), next); cay.KindOf(err) != cay.Unavailable {
			t.Errorf("after the end: %v", err)
		}
	})
}
