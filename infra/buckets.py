"""Create the buckets named on the command line where they are missing.

Address and keys: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY. Any error but "exists already" ends it.
"""

import sys

from botocore.exceptions import ClientError
from botocore.session import get_session

EXISTS = {"BucketAlreadyExists", "BucketAlreadyOwnedByYou"}


def create(names: list[str]) -> None:
    store = get_session().create_client("s3")
    for name in names:
        try:
            store.create_bucket(Bucket=name)
            print(f"{name}: created")
        except ClientError as error:
            if error.response["Error"]["Code"] not in EXISTS:
                raise
            print(f"{name}: exists")


if __name__ == "__main__":
    create(sys.argv[1:])
