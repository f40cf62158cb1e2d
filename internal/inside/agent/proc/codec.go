package proc

import (
	"encoding/base64"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/cay-run/cay/api/proto/process"
)

// jsonCodec is connect's JSON codec, but quick about output: that is where the
// bytes are, and reflection over every chunk would cost more than moving it.
type jsonCodec struct{}

func (jsonCodec) Name() string { return "json" }

func (c jsonCodec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend lets connect bring its own buffer.
func (jsonCodec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	var event *pb.ProcessEvent
	switch m := message.(type) {
	case *pb.StartResponse:
		event = m.GetEvent()
	case *pb.ConnectResponse:
		event = m.GetEvent()
	}
	switch out := event.GetData().GetOutput().(type) {
	case *pb.ProcessEvent_DataEvent_Stdout:
		return appendOutput(dst, "stdout", out.Stdout), nil
	case *pb.ProcessEvent_DataEvent_Stderr:
		return appendOutput(dst, "stderr", out.Stderr), nil
	case *pb.ProcessEvent_DataEvent_Pty:
		return appendOutput(dst, "pty", out.Pty), nil
	}
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a message", message)
	}
	return protojson.MarshalOptions{}.MarshalAppend(dst, m)
}

func appendOutput(dst []byte, name string, b []byte) []byte {
	dst = append(dst, `{"event":{"data":{"`...)
	dst = append(dst, name...)
	dst = append(dst, `":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, `"}}}`...)
}

func (jsonCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a message", message)
	}
	if len(data) == 0 {
		return fmt.Errorf("an empty text is not JSON")
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, m)
}
