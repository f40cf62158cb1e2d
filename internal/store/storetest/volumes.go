package storetest

import (
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func testVolumes(t *testing.T, s store.Store) {
	team, other := addTeam(t, s, "one"), addTeam(t, s, "two")
	v := cay.Volume{ID: cay.NewVolumeID(), Team: team.ID, Name: "data", SizeMB: 100, CreatedAt: at(1), Version: 1}
	made := cay.Event{Team: team.ID, Type: cay.VolumeCreated, At: at(1), Data: map[string]string{"volume": string(v.ID)}}
	noError(t, s.AddVolume(t.Context(), v, made))
	events, err := s.Events(t.Context(), store.EventQuery{Team: team.ID})
	noError(t, err)
	if len(events) != 1 || events[0].Type != cay.VolumeCreated {
		t.Errorf("the events are %+v", events)
	}
	twice := v
	twice.ID = cay.NewVolumeID()
	wantKind(t, s.AddVolume(t.Context(), twice, made), cay.Conflict)
	twice.Team, twice.ID = other.ID, v.ID
	wantKind(t, s.AddVolume(t.Context(), twice), cay.Conflict)
	twice.ID, twice.CreatedAt = cay.NewVolumeID(), at(2)
	noError(t, s.AddVolume(t.Context(), twice))
	if n, err := s.LastEvent(t.Context(), team.ID); n != 1 || err != nil {
		t.Errorf("a volume that was refused is told: %d, %v", n, err)
	}
	for _, ref := range []string{"data", string(v.ID)} {
		got, err := s.Volume(t.Context(), team.ID, ref)
		noError(t, err)
		same(t, ref, got, v)
	}
	named := twice // as an id of another team's volume, which it does not hide
	named.ID, named.Name = cay.NewVolumeID(), string(v.ID)
	noError(t, s.AddVolume(t.Context(), named))
	got, err := s.Volume(t.Context(), other.ID, string(v.ID))
	noError(t, err)
	same(t, "by a name with the form of an id", got, named)
	noError(t, s.RemoveVolume(t.Context(), other.ID, named.ID))
	got, err = s.Volume(t.Context(), "", string(v.ID))
	noError(t, err)
	same(t, "by its id alone", got, v)
	for _, ref := range []string{string(v.ID), "Data", ""} {
		_, err = s.Volume(t.Context(), other.ID, ref)
		wantKind(t, err, cay.NotFound)
	}
	_, err = s.Volume(t.Context(), "", "data")
	wantKind(t, err, cay.NotFound)
	list, err := s.Volumes(t.Context(), team.ID)
	noError(t, err)
	same(t, "the team's", list, []cay.Volume{v})
	list, err = s.Volumes(t.Context(), "")
	noError(t, err)
	same(t, "all", list, []cay.Volume{v, twice})
	n, err := s.CountTeam(t.Context(), team.ID)
	noError(t, err)
	if n.Volumes != 1 {
		t.Errorf("the team has %+v", n)
	}

	v.SizeMB = 200
	noError(t, s.UpdateVolume(t.Context(), v))
	wantKind(t, s.UpdateVolume(t.Context(), v, made), cay.Conflict)
	v.Version++
	got, err = s.Volume(t.Context(), team.ID, "data")
	noError(t, err)
	same(t, "resized", got, v)
	stranger := v
	stranger.Team = other.ID
	wantKind(t, s.UpdateVolume(t.Context(), stranger), cay.NotFound)

	wantKind(t, s.RemoveVolume(t.Context(), other.ID, v.ID, made), cay.NotFound)
	noError(t, s.RemoveVolume(t.Context(), team.ID, v.ID, made))
	wantKind(t, s.RemoveVolume(t.Context(), team.ID, v.ID, made), cay.NotFound)
	if n, err := s.LastEvent(t.Context(), team.ID); n != 2 || err != nil {
		t.Errorf("the events are %d, %v", n, err)
	}
	v.ID = cay.NewVolumeID()
	noError(t, s.AddVolume(t.Context(), v)) // its name is free
}

func testVolumesOfSandboxes(t *testing.T, s store.Store) {
	team := addTeam(t, s, "one")
	id := cay.NewVolumeID()
	mount := cay.VolumeMount{Volume: id, Name: "data", Path: "/a"}
	var boxes []cay.Sandbox
	for i, state := range []cay.State{cay.Running, cay.Paused, cay.Resuming, cay.Killed} {
		b := sandbox(team.ID, i)
		b.State, b.Volumes = state, []cay.VolumeMount{mount, {Volume: id, Name: "data", Path: "/b", SubPath: "c"}}
		noError(t, s.AddSandbox(t.Context(), b))
		boxes = append(boxes, b)
	}
	free := sandbox(team.ID, 9)
	free.Volumes = nil
	noError(t, s.AddSandbox(t.Context(), free))
	list, err := s.SandboxesWith(t.Context(), id)
	noError(t, err)
	if len(list) != 3 || list[0].ID != boxes[0].ID || list[1].ID != boxes[1].ID || list[2].ID != boxes[2].ID {
		t.Fatalf("mounted by %+v", list)
	}
	same(t, "its mounts", list[0].Volumes, boxes[0].Volumes)
	got, err := s.Sandbox(t.Context(), team.ID, free.ID)
	noError(t, err)
	if got.Volumes != nil {
		t.Errorf("one without mounts has %+v", got.Volumes)
	}
	ended := boxes[0]
	ended.State, ended.EndedAt = cay.Killed, at(10)
	noError(t, s.UpdateSandbox(t.Context(), ended))
	without := boxes[1] // it was booted without: the volume is gone
	without.Volumes = nil
	noError(t, s.UpdateSandbox(t.Context(), without))
	if got, err = s.Sandbox(t.Context(), team.ID, without.ID); err != nil || got.Volumes != nil {
		t.Errorf("it has %+v, %v", got.Volumes, err)
	}
	list, err = s.SandboxesWith(t.Context(), id)
	noError(t, err)
	if len(list) != 2 {
		t.Errorf("mounted by %+v", list)
	}
	_, err = s.PruneSandboxes(t.Context(), at(100))
	noError(t, err)
}
