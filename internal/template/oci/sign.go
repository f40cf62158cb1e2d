package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/cay-run/cay"
)

// signAWS adds AWS's signature to a request.
func signAWS(ctx context.Context, req *http.Request, body []byte, c AWSCredentials, service string, at time.Time) error {
	sum := sha256.Sum256(body)
	keys := aws.Credentials{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey}
	err := v4.NewSigner().SignHTTP(ctx, keys, req, hex.EncodeToString(sum[:]), service, c.Region, at)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "sign a request to AWS")
	}
	return nil
}
