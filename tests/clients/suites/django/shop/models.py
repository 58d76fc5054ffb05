import uuid

from django.db import models


class Author(models.Model):
    name = models.CharField(max_length=100, db_index=True)
    born = models.DateField(null=True)


class Tag(models.Model):
    name = models.SlugField(unique=True)


class Book(models.Model):
    key = models.UUIDField(default=uuid.uuid4, unique=True)
    title = models.CharField(max_length=200)
    author = models.ForeignKey(Author, on_delete=models.CASCADE, related_name="books")
    price = models.DecimalField(max_digits=8, decimal_places=2, default=0)
    added = models.DateTimeField(auto_now_add=True)
    length = models.DurationField(null=True)
    cover = models.BinaryField(null=True)
    data = models.JSONField(default=dict)
    tags = models.ManyToManyField(Tag)

    class Meta:
        indexes = [models.Index(fields=["title", "price"], name="book_title_price")]
        constraints = [
            models.UniqueConstraint(fields=["title", "author"], name="book_unique"),
            models.CheckConstraint(condition=models.Q(price__gte=0), name="book_price"),
        ]
