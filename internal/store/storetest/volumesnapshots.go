package storetest

import (
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func testVolumeSnapshots(t *testing.T, s store.Store) {
	team, other := addTeam(t, s, "one"), addTeam(t, s, "two")
	v := cay.Volume{ID: cay.NewVolumeID(), Team: team.ID, Name: "data", SizeMB: 100, CreatedAt: at(1), Version: 1}
	noError(t, s.AddVolume(t.Context(), v))
	second := cay.Volume{ID: cay.NewVolumeID(), Team: team.ID, Name: "more", SizeMB: 100, CreatedAt: at(1), Version: 1}
	noError(t, s.AddVolume(t.Context(), second))
	told := cay.Event{Team: team.ID, Type: cay.VolumeSnapshotted, At: at(1), Data: map[string]string{"volume": string(v.ID)}}
	one := cay.VolumeSnapshot{ID: cay.NewVolumeID(), Volume: v.ID, Team: team.ID, Name: "before", SizeMB: 100, CreatedAt: at(2)}
	noError(t, s.AddVolumeSnapshot(t.Context(), one, told))
	two := one
	two.ID, two.CreatedAt = cay.NewVolumeID(), at(3)
	wantKind(t, s.AddVolumeSnapshot(t.Context(), two, told), cay.Conflict)
	two.Volume = second.ID // another volume may have the name
	noError(t, s.AddVolumeSnapshot(t.Context(), two))
	for _, wrong := range []cay.VolumeSnapshot{
		{ID: cay.NewVolumeID(), Volume: cay.NewVolumeID(), Team: team.ID, Name: "none"},
		{ID: cay.NewVolumeID(), Volume: v.ID, Team: other.ID, Name: "none"},
	} {
		wantKind(t, s.AddVolumeSnapshot(t.Context(), wrong, told), cay.NotFound)
	}
	if n, err := s.LastEvent(t.Context(), team.ID); n != 1 || err != nil {
		t.Errorf("the events are %d, %v", n, err)
	}
	for _, ref := range []string{"before", string(one.ID)} {
		got, err := s.VolumeSnapshot(t.Context(), team.ID, v.ID, ref)
		noError(t, err)
		same(t, ref, got, one)
		_, err = s.VolumeSnapshot(t.Context(), other.ID, v.ID, ref)
		wantKind(t, err, cay.NotFound)
	}
	_, err := s.VolumeSnapshot(t.Context(), team.ID, v.ID, string(two.ID))
	wantKind(t, err, cay.NotFound)
	for _, c := range []struct {
		team   cay.TeamID
		volume cay.VolumeID
		want   []cay.VolumeSnapshot
	}{
		{"", "", []cay.VolumeSnapshot{one, two}}, {team.ID, "", []cay.VolumeSnapshot{one, two}},
		{team.ID, v.ID, []cay.VolumeSnapshot{one}}, {other.ID, v.ID, nil},
	} {
		got, err := s.VolumeSnapshots(t.Context(), c.team, c.volume)
		noError(t, err)
		if len(got) != len(c.want) || len(got) > 0 && got[0] != c.want[0] {
			t.Errorf("of %q and %q: %+v", c.team, c.volume, got)
		}
	}

	// A volume stays as long as it has snapshots.
	wantKind(t, s.RemoveVolume(t.Context(), team.ID, v.ID, told), cay.Conflict)
	wantKind(t, s.RemoveVolumeSnapshot(t.Context(), other.ID, one.ID, told), cay.NotFound)
	noError(t, s.RemoveVolumeSnapshot(t.Context(), team.ID, one.ID, told))
	wantKind(t, s.RemoveVolumeSnapshot(t.Context(), team.ID, one.ID, told), cay.NotFound)
	noError(t, s.RemoveVolume(t.Context(), team.ID, v.ID))
	if n, err := s.LastEvent(t.Context(), team.ID); n != 2 || err != nil {
		t.Errorf("the events are %d, %v", n, err)
	}
}
